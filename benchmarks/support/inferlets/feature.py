"""What `benchmarks features` asks of both sides, as a program."""

from typing import Any

from inferlet_sdk import Args, Context, IgnoreStopTokens, Sampler, gather, inferlet


@inferlet
async def main(args: Args, prompt: list[int], tokens: int, n: int = 1, schema: dict[str, Any] | None = None) -> int:
    context = Context(args.model).fill(prompt)
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
