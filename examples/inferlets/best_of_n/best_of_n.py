from inferlet_sdk import Context, Sampler, inferlet


@inferlet
async def main(args, topic: str = "bees", count: int = 4):
    """Samples several sentences and takes one by a rule of the program, then one by the model's own judgement."""
    ctx = Context(args.model).fill_chat("user", f"Tell me a fact about {topic}.")
    sampler = Sampler(temperature=1.2, seed=4)

    likely = await ctx.fork().best_of(count, 40, sampler=sampler)
    short = await ctx.best_of(count, 40, sampler=sampler, score=lambda text: -len(text))

    await args.send(f"most likely: {likely[0].text}\n")
    await args.send(f"shortest: {short[0].text}\n")
    return [len(one.text) for one in short] == sorted(len(one.text) for one in short)
