from inferlet_sdk import Context, inferlet


@inferlet
async def main(args, question: str = "What do you see?", tokens: int = 200):
    content = [{"type": "image", "image": "photo"}, {"type": "text", "text": question}]
    ctx = Context(args.model).fill_chat("user", content)
    await args.stream(ctx.generate(max_tokens=tokens))
