import sys

from inferlet_sdk import Context, IgnoreStopTokens, inferlet

STEP = 128


@inferlet
async def main(args, window: int = 64, sink: int = 4, tokens: int = 200, text: list[int] | None = None):
    """A text of any length in little memory: the model sees the first few tokens and the last ones (attention sink).
    It writes a story; or reads `text`, and tells how likely each token was."""
    ctx, most, told = Context(args.model), 0, []
    if text:
        ctx.fill(text[:1])
        for first in range(1, len(text), STEP):
            told += await ctx.score(part := text[first : first + STEP])
            ctx.fill(part).window(window, sink=sink)
            most = max(most, len(ctx.pages))
        return {"logprobs": told, "pages": most}

    if tokens > ctx.model.max_context and not ctx.model.moves_tokens:
        sys.exit(f"tokens: {args.model} cannot move tokens, so give {ctx.model.max_context} at most")
    ctx.fill_chat("user", "Tell me a story.")
    while len(ctx) < tokens:
        await ctx.generate_until(IgnoreStopTokens(), 16)
        most = max(most, len(ctx.pages))
        ctx.window(window, sink=sink)
    size = ctx.model.page_size
    await args.send(f"{len(ctx)} tokens, in {len(ctx.pages)} pages of {size}\n")
    return most * size <= window + 6 * size
