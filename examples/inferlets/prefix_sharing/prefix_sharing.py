from inferlet_sdk import Context, NotFound, inferlet

BEGINNING = "Once upon a time there was a small bee. The bee lived in an old barn, and it had a friend, a grey mouse."


@inferlet
async def main(args, turn: str = " One day"):
    """Goes on with a story whose beginning is kept for all programs of this user: the first one runs it."""
    try:
        story = await Context.open("bee-story", args.model)
    except NotFound:
        story = Context(args.model).fill(BEGINNING)
        await story.export("bee-story")

    known = len(story)
    await args.send(turn + await story.fill(turn).generate_until(max_tokens=40) + "\n")
    again = await Context.open("bee-story", args.model)
    return [len(again) == known, again.text == BEGINNING]
