from hashlib import sha256
from time import perf_counter

from inferlet_sdk import Context, NotFound, gather, inferlet

HEAD = "<|begin|><|system|>Tools:\n"
ASKED = "What is the weather in Oslo?"
TOOLS = ["timer(minutes): sets a timer\n", "weather(city): tells the weather\n", "play(song): plays a song\n"]


@inferlet
async def main(args, question: str = ASKED, modules: list[str] = TOOLS, tokens: int = 40, join: bool = True):
    """Answers with any of many modules in its prompt, in any order. Each is computed once, behind the beginning that
    all prompts have, and kept for all programs of the same user; a prompt is joined from them."""

    async def module(text: str) -> Context:
        name = f"module {sha256(text.encode()).hexdigest()}"
        try:
            return await Context.open(name, args.model)
        except NotFound:
            ctx = Context(args.model, share=False).fill(HEAD)
            first = len(ctx)
            if text != HEAD:
                ctx = Context.join([ctx.fill(text).drop(0, first)])
            await ctx.export(name)
            return ctx

    asked, begin = f"<|end|><|user|>{question}<|end|><|assistant|>", perf_counter()
    if join:
        ctx = Context.join(await gather(*map(module, [HEAD, *filter(None, modules)]))).fill(asked)
    else:
        ctx = Context(args.model, share=False).fill(HEAD + "".join(modules) + asked)
    await ctx.sample()
    seconds = perf_counter() - begin
    answer = await ctx.generate_until(max_tokens=tokens)
    await args.send(answer + "\n")
    return {"answer": answer, "seconds": seconds}
