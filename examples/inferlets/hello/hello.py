from inferlet_sdk import Context, inferlet


@inferlet
async def main(args):
    ctx = Context(args.model)
    ctx.fill("Hello, ")
    async for piece in ctx.generate(max_tokens=10):
        await args.send(piece)
