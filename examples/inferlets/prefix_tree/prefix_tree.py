import sys

from inferlet_sdk import Context, gather, inferlet

PARTS = [["Once upon a time,", "One winter day,"], [" a fox", " an old bee"], [" found a key", " lost a hat"]]


@inferlet
async def main(args, parts: list[list[str]] = PARTS, tokens: int = 8):
    """Goes on with each path of a tree of beginnings. The tokens of a node are computed once, for all paths below it,
    and a branch goes as soon as nothing below it is left."""
    if not parts or not parts[0]:
        sys.exit('parts: give levels of beginnings, such as [["A fox", "A bee"], [" ran"]]')

    async def grow(node: Context, level: int) -> list[str]:
        if level == len(parts):
            await node.generate_until(max_tokens=tokens)
            return [node.text]
        branches = [node.fork().fill(part) for part in parts[level]]
        await gather(*(branch.flush() for branch in branches))
        paths = await gather(*(grow(branch, level + 1) for branch in branches))
        for branch in branches:
            branch.close()
        return [text for below in paths for text in below]

    paths = await grow(Context(args.model), 0)
    await args.send("\n".join(paths) + "\n")
    return paths
