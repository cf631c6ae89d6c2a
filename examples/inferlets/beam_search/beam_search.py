from inferlet_sdk import Context, inferlet


@inferlet
async def main(args, question: str = "Is the sky blue?", width: int = 3, length: int = 24):
    """The most likely answers by beam search, and the answer that taking the most likely token at each step gives."""
    ctx = Context(args.model).fill_chat("user", question)
    greedy = await ctx.fork().generate_until(max_tokens=length)
    beams = await ctx.beam(width, length)

    await args.send(f"greedy: {greedy}\n")
    for beam in beams:
        await args.send(f"{beam.score:.2f}: {beam.text}\n")
    return {"greedy": greedy, "beams": [(beam.text, beam.score) for beam in beams]}
