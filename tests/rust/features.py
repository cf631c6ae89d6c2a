"""What features.rs does, by the Python SDK."""

import asyncio
import json
from contextlib import closing, suppress

from inferlet_sdk import (
    Context,
    Dist,
    DistSampler,
    Greedy,
    IgnoreStopTokens,
    NotFound,
    PieError,
    PromptLookup,
    Sampler,
    gather,
    inferlet,
    traits,
)

PROMPT = "Once upon a time, there was a"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
}


@inferlet
async def main(args, what: str, acts: str = ""):
    if acts:
        return await do(acts, args.model)
    ctx = Context(args.model).fill(PROMPT)
    return await FEATURES[what](args, ctx)


async def stop(_, ctx):
    generation = ctx.generate(40, stop=" na")
    pieces = "".join([piece async for piece in generation])
    text = ctx.text
    return [pieces, generation.stop_reason, text, await ctx.fork().generate_until(",", max_tokens=40)]


async def sampled(_, ctx):
    def second_best(dist: Dist) -> int:
        return dist.tokens[1]

    sampler = Sampler(seed=7, top_p=0.9)
    first = await ctx.fork().generate_until(max_tokens=12, sampler=sampler)
    penalized = Greedy(repetition_penalty=1.3)
    second = await ctx.fork().generate_until(max_tokens=12, sampler=penalized, run_ahead=False)
    third = await ctx.fork().generate_until(max_tokens=12, sampler=second_best)
    return [first, second, third, await ctx.sample(sampler)]


async def drafted(_, ctx):
    ctx.fill(" dog. The dog ran. The dog")
    plain = await ctx.fork().generate_until(max_tokens=30)
    text = await ctx.generate_until(max_tokens=30, draft=PromptLookup())
    options = {"max_tokens": 20, "sampler": Sampler(seed=7), "draft": PromptLookup()}
    kept = [await ctx.fork().generate_until(regex=regex, **options) for regex in (None, "(.|\\n)*")]
    return [plain, text, ctx.text, *kept]


async def constrained(_, ctx):
    found = await ctx.fork().generate_until(max_tokens=40, schema=SCHEMA)
    fork = ctx.fork()
    matched = fork.generate(40, regex="( cat| dog){2}")
    await matched.whole()
    return [found, fork.text, matched.stop_reason]


async def cut(_, ctx):
    await ctx.generate_until(max_tokens=30)
    ctx.truncate(20)
    windowed = ctx.fork()
    windowed.drop(4, 12, close_gap=False)
    hidden = await windowed.generate_until(max_tokens=8)
    return [hidden, await ctx.generate_until(max_tokens=8), ctx.restarted(5).text]


async def windowed(_, ctx):
    for _ in range(4):
        await ctx.generate_until(IgnoreStopTokens(), max_tokens=16)
        kept = ctx.fork()  # has the pages, too
        ctx.window(24, sink=3)
        kept.close()
    cut = ctx.fork().truncate(50)
    return [await ctx.generate_until(max_tokens=8), ctx.text, await cut.generate_until(max_tokens=8)]


async def joined(args, ctx):
    first = Context(args.model).fill("The bee and the fox met by the mill.")
    moved = await Context.join([first, ctx]).generate_until(max_tokens=8)
    other = Context(args.model, position=len(ctx)).fill(" small girl with a red")
    whole = Context.join([ctx, other])
    text = await whole.generate_until(max_tokens=8)
    far = Context(args.model, position=len(ctx) + 40).fill(" small girl with a red")
    cut = await Context.join([ctx, far]).truncate(len(ctx)).generate_until(max_tokens=8)
    again = await Context.join([first, Context.join([ctx, far])]).generate_until(max_tokens=8)
    return [moved, text, whole.text, await other.generate_until(max_tokens=4), cut, again]


async def exported(args, ctx):
    await ctx.export("features in Python")
    opened = await Context.open("features in Python", args.model)
    return [await opened.generate_until(max_tokens=8), await ctx.generate_until(max_tokens=8)]


async def scored(_, ctx):
    tokens = traits.tokenize(ctx.queue, " little girl")
    scores, many = await ctx.score(tokens), sum(await ctx.score(tokens * 40))
    dist = await ctx.next_dist(3)
    best = await ctx.best_of(3, 6, sampler=Sampler(seed=1), score=len)
    return [round(sum(scores) * 1000), round(many), list(dist.tokens), [one.text for one in best]]


async def stepped(_, ctx):
    start = len(ctx)
    for _ in range(40):
        ctx.fill([(await ctx.next_dist(5)).max_index()])
    return [list(ctx.tokens[start:]), ctx.text]


async def together(_, ctx):
    return await gather(*(fork.generate_until(max_tokens=6) for fork in [ctx.fork() for _ in range(12)]))


async def crowded(args, _):
    def prompt(number):
        return [97 + (number + place) % 26 for place in range(90)]

    async def done(number, one):
        if number % 2:
            return str(len(await one.score([97 + number % 26] * 30)))
        draft = None if number % 4 else lambda _: [97] * 20
        return await one.generate_until(IgnoreStopTokens(), max_tokens=3, draft=draft)

    every = [Context(args.model, share=False).fill(prompt(number)) for number in range(40)]
    texts = await gather(*(done(number, one) for number, one in enumerate(every)))
    more = [(await one.fill(prompt(0)[:15]).next_dist(2)).max_index() for one in every]
    for one in every[1:]:
        one.close()
    await Context(args.model).fill("short").export("crowded")
    opened = await gather(*(Context.open("crowded", args.model) for _ in range(100)))
    before = traits.usage().pages
    every[0].drop(4, 84, close_gap=False)
    while traits.usage().pages >= before:
        await asyncio.sleep(0.001)
    return [texts, *more, len(opened), len(Context(args.model).fill([97] * 140_000).text)]


async def do(acts, model):
    contexts, found, greedy, no_stop = [], [], Sampler(temperature=0), IgnoreStopTokens()
    for name, place, tokens, texts in json.loads(acts):
        if name == "new":
            contexts.append(Context(model))
            continue
        if name == "join":
            try:
                contexts.append(Context.join([contexts[one] for one in tokens]))
            except PieError as error:
                found.append(str(error))
                contexts.append(Context(model))
            continue
        if name == "resume":
            messages = [{"role": role, "content": text} for role, text in zip(texts[1::2], texts[2::2], strict=True)]
            try:
                contexts.append(await Context.open(texts[0], model, messages=messages))
            except NotFound:
                found.append(True)
            continue
        ctx = contexts[place]
        if name == "fill":
            ctx.fill(tokens)
        elif name == "texts":
            for text in texts:
                ctx.fill(text)
        elif name == "chat":
            ctx.fill_chat([{"role": role, "content": text} for role, text in zip(texts[::2], texts[1::2], strict=True)])
        elif name == "fork":
            contexts.append(ctx.fork())
        elif name == "truncate":
            try:
                ctx.truncate(min(tokens[0], len(ctx.tokens)))
            except PieError as error:
                found.append(str(error))
        elif name == "drop":
            try:
                ctx.drop(tokens[0], tokens[1], close_gap=tokens[2] > 0)
            except PieError as error:
                found.append(str(error).replace("drop:", "drop_tokens:"))  # as Rust has it
        elif name == "keep":
            ctx.keep()
        elif name == "close":
            await ctx.flush()
            contexts.pop(place).close()
        elif name == "score":
            await ctx.score(tokens)
        elif name == "export":
            await ctx.export(texts[0])
            contexts.append(await Context.open(texts[0], model))
        elif name == "sample":
            found.append(await ctx.sample(greedy))
        elif name == "generate":
            found.append(
                await ctx.generate_until([no_stop, *texts], max_tokens=tokens[0], sampler=greedy, run_ahead=False)
            )
        elif name == "draft":
            begin = len(ctx.tokens)

            def half_right(everything, right=tokens, begin=begin):
                done = len(everything) - begin
                return [*right[done : done + 2], *[token ^ 1 for token in right[done + 2 : done + 4]]]

            found.append(
                await ctx.generate_until(
                    [no_stop, *texts], max_tokens=len(tokens), sampler=greedy, draft=half_right, run_ahead=False
                )
            )
        elif name == "try":
            try:
                found.append(await tried(ctx, json.loads(texts[0]), tokens))
            except (PieError, ValueError) as error:
                found.append(said(error))
            found.append(list(ctx.tokens))
        elif name == "shut":
            contexts.pop(place).close()
        elif name == "left":
            while contexts:
                contexts.pop().close()
            while (left := traits.usage()).pages or left.futures:
                await asyncio.sleep(0.001)  # what a run has left comes back when it has ended
    return found


async def tried(ctx, options, tokens):
    fields = {"temperature": 0.0, "seed": None, "top_p": 1.0, "window": 64}
    given = {name: options.get(name, default) for name, default in fields.items()}
    sampler = Sampler(**given, repetition_penalty=options.get("penalty", 1.0))
    width, most = options.get("width", 1), options.get("most")
    match options.get("what"):
        case "score":
            return [round(one * 1000) for one in await ctx.score(tokens)]
        case "select":
            return await ctx.select(options["options"], mean="mean" in options)
        case "sample":
            return await ctx.sample(sampler)
        case "beam":
            return shown(await ctx.beam(width, most))
        case "best":
            return shown(await ctx.best_of(width, most, sampler=sampler, score=lambda text: sum(text.encode())))
    if "whole" in options:
        return await generation(ctx, options, sampler, tokens).whole()
    take = options.get("take", 1 << 30)
    try:
        generated = generation(ctx, options, sampler, tokens)
    except (PieError, ValueError) as error:  # Rust says so when it is asked for a piece
        return ["", "", [], [said(error)] * min(take, 2)]
    with closing(generated):
        return await taken(generated, take, options.get("cancel"))


def said(error):
    return f"{getattr(error, 'code', 'invalid-argument')}: {error}".replace("last=400", "400")


def shown(found):
    return [[list(one.tokens), one.text, round(one.score * 1000), one.stop_reason] for one in found]


def generation(ctx, options, sampler, tokens):
    stop = [*options.get("stop", []), *options.get("stop_tokens", []), *[IgnoreStopTokens()] * ("ignore" in options)]
    if (place := options.get("choose")) is not None:
        sampler = DistSampler(lambda dist: dist.tokens[place % len(dist.tokens)], 5)
    draft = PromptLookup(options["lookup"], options.get("length", 8)) if "lookup" in options else None
    if "guess" in options:

        def draft(_):
            return tokens

    return ctx.generate(
        options.get("most"),
        stop=stop,
        sampler=sampler,
        draft=draft,
        run_ahead="slow" not in options,
        include_stop="include" in options,
        **({options["kind"]: options["text"]} if "kind" in options else {}),
    )


async def taken(generated, most, cancel):
    text, refused, place = "", [], 0
    while place < most and len(refused) < 2:
        if cancel == place:
            task = asyncio.ensure_future(anext(generated, None))
            await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError, PieError, ValueError):
                text += await task or ""
        try:
            piece = await anext(generated, None)
        except (PieError, ValueError) as error:
            refused.append(said(error))
        else:
            if piece is None:
                break
            text += piece
        place += 1
    return [text, generated.stop_reason or "", generated.tokens, refused]


SHOWN = (stop, sampled, drafted, constrained, cut, windowed, joined, exported, scored, together, stepped, crowded)
FEATURES = {one.__name__: one for one in SHOWN}
