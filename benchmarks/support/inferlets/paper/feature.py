"""What `benchmarks features` asks of both sides, as a program."""

from typing import Any

from inferlet_sdk import Args, Context, IgnoreStopTokens, Sampler, gather, inferlet


@inferlet
async def main(
    args: Args,
    prompt: list[int],
    tokens: int,
    n: int = 1,
    schema: dict[str, Any] | None = None,
    strategy: str = "",
    headings: list[list[int]] | None = None,
) -> int:
    context = Context(args.model).fill(prompt)
    if strategy == "skeleton":
        return await skeleton(context, tokens, headings or [])
    if strategy == "tree":
        return await tree(context, tokens, n)
    if schema is not None:
        generation = context.generate(tokens, schema=schema)
        await generation.whole()
        return len(generation.tokens)
    if n == 1:
        await context.generate_until(IgnoreStopTokens(), tokens)
        return tokens
    await context.flush()
    samples = [context.fork() for _ in range(n)]
    await gather(
        *(
            one.generate_until(IgnoreStopTokens(), tokens, sampler=Sampler(seed=number))
            for number, one in enumerate(samples)
        )
    )
    return n * tokens


async def skeleton(context: Context, tokens: int, headings: list[list[int]]) -> int:
    """An outline, and then each of its points at the same time."""
    await context.generate_until(IgnoreStopTokens(), tokens)
    points = [context.fork().fill(heading) for heading in headings]
    await gather(*(one.generate_until(IgnoreStopTokens(), tokens) for one in points))
    return tokens * (1 + len(points))


async def tree(context: Context, tokens: int, branches: int) -> int:
    """At each of as many levels as branches, several thoughts of which one is kept."""
    for level in range(branches):
        await context.flush()
        thoughts = [context.fork() for _ in range(branches)]
        seeds = [branches * level + number for number in range(branches)]
        await gather(
            *(
                one.generate_until(IgnoreStopTokens(), tokens, sampler=Sampler(seed=seed))
                for one, seed in zip(thoughts, seeds, strict=True)
            )
        )
        context = thoughts[level]
    return tokens * branches * branches
