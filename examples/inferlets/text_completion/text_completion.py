from inferlet_sdk import Context, Greedy, Sampler, inferlet


@inferlet
async def main(
    args,
    prompt: str,
    max_tokens: int = 60,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int | None = None,
    stop: str | None = None,
    top_k: int = 0,
):
    """Completes `prompt` and returns how it ended."""
    sampler = Sampler(temperature=temperature, top_p=top_p, top_k=top_k, seed=seed) if temperature else Greedy()
    async with Context(args.model) as ctx:
        ctx.fill(prompt)
        generation = ctx.generate(max_tokens, sampler=sampler, stop=stop)
        await args.stream(generation)
        return {"tokens": len(generation.tokens), "ended": generation.stop_reason}
