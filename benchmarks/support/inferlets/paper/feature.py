"""What `benchmarks features` asks of both sides, as a program."""

from typing import Any

from inferlet_sdk import Args, Context, IgnoreStopTokens, Sampler, gather, inferlet


@inferlet(reuse=True)
async def main(
    args: Args,
    prompt: list[int],
    tokens: int,
    n: int = 1,
    schema: dict[str, Any] | None = None,
    strategy: str = "",
    headings: list[list[int]] | None = None,
    show: bool = False,
) -> int | list[list[int]]:
    context = Context(args.model).fill(prompt)
    if strategy == "skeleton":
        return await skeleton(context, tokens, headings or [])
    if strategy == "tree":
        return await tree(context, tokens, n)
    if strategy:
        await context.flush()
    if strategy == "recursion":
        return len(await recursion(context, tokens, headings or [], 1))
    if strategy == "graph":
        return len(await graph(context, tokens, headings or [], n))
    texts = [context]
    if schema is not None:
        await context.generate(tokens, schema=schema).whole()
    elif n == 1:
        await context.generate_until(IgnoreStopTokens(), tokens)
    else:
        texts = await sampled(context, tokens, range(n))
    if show:
        return [list(one.tokens[len(prompt) :]) for one in texts]
    return sum(len(one) - len(prompt) for one in texts)


async def sampled(context: Context, tokens: int, seeds: range) -> list[Context]:
    """A fork for each seed, which has generated."""
    await context.flush()
    forks = [context.fork() for _ in seeds]
    pairs = zip(forks, (Sampler(seed=seed) for seed in seeds), strict=True)
    await gather(*(one.generate_until(IgnoreStopTokens(), tokens, sampler=sampler) for one, sampler in pairs))
    return forks


async def skeleton(context: Context, tokens: int, headings: list[list[int]]) -> int:
    """An outline, and then each of its points at the same time."""
    await context.generate_until(IgnoreStopTokens(), tokens)
    points = [context.fork().fill(heading) for heading in headings]
    await gather(*(one.generate_until(IgnoreStopTokens(), tokens) for one in points))
    return tokens * (1 + len(points))


async def tree(context: Context, tokens: int, branches: int) -> int:
    """At each of as many levels as branches, several thoughts of which one is kept."""
    for level in range(branches):
        thoughts = await sampled(context, tokens, range(branches * level, branches * (level + 1)))
        context = thoughts[level]
    return tokens * branches * branches


async def recursion(shared: Context, tokens: int, headings: list[list[int]], number: int) -> list[int]:
    """The call `number` asks what its two parts are; these are calls, too, and what they come to is put together. Calls
    of the last level have no parts."""

    async def ask(asked: list[int]) -> list[int]:
        async with shared.fork().fill(asked) as call:
            await call.generate_until(IgnoreStopTokens(), tokens)
            return list(call.tokens[-tokens:])

    answer = await ask(headings[number])
    if 2 * number >= len(headings):
        return answer
    one, other = await gather(*(recursion(shared, tokens, headings, 2 * number + side) for side in (0, 1)))
    return await ask([*one, *other])


async def graph(shared: Context, tokens: int, headings: list[list[int]], tries: int) -> list[int]:
    """Several tries at each part, of which one is kept; then these are merged two by two in the same way."""

    async def best(asked: list[int]) -> list[int]:
        async with shared.fork().fill(asked) as call:
            found = await sampled(call, tokens, range(tries))
            return list(found[0].tokens[-tokens:])

    parts = await gather(*(best(heading) for heading in headings))
    while len(parts) > 1:
        parts = await gather(*(best([*one, *other]) for one, other in zip(parts[::2], parts[1::2], strict=True)))
    return parts[0]
