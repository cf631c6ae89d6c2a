from inferlet_sdk import Context, IgnoreStopTokens, inferlet


@inferlet
async def main(args, window: int = 64, sink: int = 4, tokens: int = 200):
    """A long generation in little memory: the model sees the first few tokens and the last ones (attention sink)."""
    ctx = Context(args.model).fill_chat("user", "Tell me a story.")
    most = 0
    for _ in range(tokens // 16):
        await ctx.generate_until(IgnoreStopTokens(), 16)
        most = max(most, len(ctx.pages))
        ctx.window(window, sink=sink)

    size = ctx.model.page_size
    await args.send(f"{len(ctx)} tokens, in {len(ctx.pages)} pages of {size}\n")
    return most * size <= window + 6 * size
