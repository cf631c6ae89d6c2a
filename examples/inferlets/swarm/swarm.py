from collections import Counter

from inferlet_sdk import Context, broadcast, gather, inferlet, launch, subscribe


@inferlet
async def main(args, topics: str = "bees, rivers, bread, winter", topic: str = ""):
    """A swarm: each member writes about its own topic, tells the others, and votes for what it likes best of all."""
    if topic:
        return await member(args, topic)
    names = topics.split(", ")
    members = [launch(topic=name) for name in names]
    for one in members:
        await one.receive()  # it listens
    await gather(*(one.send(str(len(names))) for one in members))
    results = await gather(*members)
    for name, (sentence, _) in zip(names, results, strict=True):
        await args.send(f"{name}: {sentence}\n")
    votes = Counter(vote for _, vote in results)
    best, count = min(votes.items(), key=lambda item: (-item[1], item[0]))
    await args.send(f"{count} of {len(names)} like best: {best}\n")
    return len(names)


async def member(args, topic: str) -> tuple[str, str]:
    swarm = f"swarm of {args.environment['parent']}"
    with subscribe(swarm) as others:
        await args.send("ready")
        size = int(await args.receive())
        ctx = Context(args.model).fill_chat("user", f"Write a fact about {topic}.")
        sentence = await ctx.generate_until(max_tokens=40)
        await broadcast(swarm, sentence)
        heard = sorted({(await others.next()).text for _ in range(size)})
    return sentence, await favourite(ctx, heard)


async def favourite(ctx: Context, sentences: list[str]) -> str:
    """The one that the member finds most probable, for a token."""
    ctx.fill_chat("user", "Write another fact.")
    scores = [await ctx.score(sentence) for sentence in sentences]
    means = [sum(score) / len(score) for score in scores]
    return sentences[means.index(max(means))]
