"""What `benchmarks policies` runs: one request, by a decode run or by a call for each step."""

from inferlet_sdk import Args, Context, IgnoreStopTokens, inferlet


@inferlet
async def main(args: Args, program: str, prompt: int, tokens: int) -> None:
    async with Context(args.model) as context:
        context.fill([1] * prompt)
        if program == "run":
            await args.stream(context.generate(tokens, stop=IgnoreStopTokens()))
            return
        for _ in range(tokens):
            context.fill([(await context.next_dist()).max_index()])
