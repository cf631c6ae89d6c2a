from inferlet_sdk import Context, inferlet


@inferlet
async def main(args):
    ctx = Context(args.model)
    ctx.fill_chat("user", "Write three facts about bees.")
    async for piece in ctx.generate(max_tokens=60):
        await args.send(piece)
