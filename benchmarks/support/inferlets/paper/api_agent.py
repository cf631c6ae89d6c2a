"""The agent of `benchmarks optimizations` as a program; benchmarks/opponents/api_agents.py is the client's.

`export`: the documentation of each API is kept under a name, and joined. `sight`: a call goes out as soon as it is
written, and nobody waits for its result. `drop`: documentation goes when its API has been called.
"""

from collections.abc import Awaitable
from typing import Any

from inferlet_sdk import Args, Context, IgnoreStopTokens, NotFound, gather, http_get, inferlet


@inferlet(reuse=True)
async def main(
    args: Args,
    system: list[int],
    docs: list[list[int]],
    numbers: list[int],
    popular: int,
    query: list[int],
    url: str,
    tokens: int,
    written: int,
    result: list[int],
    export: bool,
    sight: bool,
    drop: bool,
    show: bool = False,
) -> int | list[list[int]]:
    context = await prepared(args, system, docs, numbers, popular) if export else Context(args.model).fill(system)
    if not export:
        for doc in docs:
            context.fill(doc)
    context.fill(query)
    calls: list[Awaitable[Any]] = []
    begin = len(system)
    for doc in docs:
        text = context.generate(tokens, stop=IgnoreStopTokens())
        if sight:
            async for _ in text:
                if len(text.tokens) >= written:
                    break
            calls.append(http_get(url))
        await text.whole()
        if not sight:
            (await http_get(url)).raise_for_status()
        if drop:
            context.drop(begin, begin + len(doc), close_gap=False)  # before more is filled, which would run first
        context.fill(result)
        begin += len(doc)
    await context.generate_until(IgnoreStopTokens(), tokens)
    for response in await gather(*calls):
        response.raise_for_status()
    return [list(context.tokens[begin + len(query) :])] if show else tokens * (len(docs) + 1)


async def prepared(args: Args, system: list[int], docs: list[list[int]], numbers: list[int], popular: int) -> Context:
    """The system's text and the documentation behind each other, each computed once for all agents. What is popular
    was computed at its place, the same for all, and its pages are shared; the rest behind it, and `join` moves it."""
    places = [len(system) + min(number, popular) * len(doc) for number, doc in zip(numbers, docs, strict=True)]
    names = [f"api {number}" for number in numbers]
    apis = (opened(args, *each) for each in zip(names, docs, places, strict=True))
    return Context.join(await gather(opened(args, "system", system, 0), *apis))


async def opened(args: Args, name: str, tokens: list[int], position: int) -> Context:
    try:
        return await Context.open(name, args.model)
    except NotFound:
        context = Context(args.model, position=position).fill(tokens)
        await context.export(name)
        return context
