from inferlet_sdk import Context, inferlet


@inferlet
async def main(args, system: str = "Be brief.", max_tokens: int = 60):
    """Answers messages until an empty one comes. The KV cache of the conversation stays between the turns."""
    ctx = Context(args.model)
    ctx.fill_chat("system", system)
    while message := await args.receive():
        ctx.fill_chat("user", message)
        async for piece in ctx.generate(max_tokens):
            await args.send(piece)
        await args.send("\n")
    return len(ctx)
