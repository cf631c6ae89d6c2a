from hashlib import sha256

from inferlet_sdk import Context, NotFound, inferlet, traits

BEGINNING = "Once upon a time there was a small bee. The bee lived in an old barn, and it had a friend, a grey mouse."


@inferlet
async def main(args, turn: str = " One day", beginning: str = BEGINNING, name: str = "bee-story", tokens: int = 40):
    """Goes on with a story whose beginning is kept for all programs of this user: the first one runs it. Without a
    name it is not kept. Returns the seconds up to the first token."""
    started, kept = traits.now(), f"{name} {sha256(beginning.encode()).hexdigest()}"
    try:
        story = await Context.open(kept, args.model) if name else Context(args.model, share=False).fill(beginning)
    except NotFound:
        story = Context(args.model).fill(beginning)
        await story.export(kept)

    generation = story.fill(turn).generate(tokens)
    first = await anext(generation, "")
    seconds = traits.now() - started
    await args.send(turn + first + await generation.whole() + "\n")
    return seconds
