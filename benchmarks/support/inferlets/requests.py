"""What `benchmarks policies` runs: one request, by a decode run."""

from inferlet_sdk import Args, Context, IgnoreStopTokens, inferlet


@inferlet
async def main(args: Args, prompt: int, tokens: int) -> None:
    async with Context(args.model) as context:
        await args.stream(context.fill([1] * prompt).generate(tokens, stop=IgnoreStopTokens()))
