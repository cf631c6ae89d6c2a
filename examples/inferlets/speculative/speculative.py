from collections.abc import Sequence
from typing import Any

from inferlet_sdk import Context, PromptLookup, inferlet

PROMPT = "<|begin|><|user|>What is 47 + 38?<|end|><|assistant|>"
LAST = 64


class Follower:
    """A draft by a context that follows the text: of another model, or one that sees only the end of the text."""

    def __init__(self, model: str, length: int, last: int | None) -> None:
        self.ctx, self.length, self.last = Context(model), length, last
        self.start: int | None = None

    async def __call__(self, tokens: Sequence[int]) -> Sequence[int]:
        if self.start is None:
            self.start = max(0, len(tokens) - self.last) if self.last else 0
        seen, known = tokens[self.start :], self.ctx.tokens
        same = next((n for n, pair in enumerate(zip(known, seen, strict=False)) if pair[0] != pair[1]), len(known))
        self.ctx.truncate(min(same, len(seen))).fill(seen[same:])
        await self.ctx.generate_until(max_tokens=self.length)
        return self.ctx.tokens[len(seen) :]


@inferlet
async def main(
    args,
    prompt: str = PROMPT,
    draft: str = "lookup",
    tokens: int = 80,
    length: int = 8,
    schema: dict[str, Any] | None = None,
):
    """Goes on with a prompt by guesses of `length` tokens, each checked at once: from the text itself ("lookup"),
    by a second context ("context"), or by another model, which is named; "": without guesses."""
    guess: PromptLookup | Follower = PromptLookup(length=length)
    if draft not in ("", "lookup"):
        guess = Follower(*((args.model, length, LAST) if draft == "context" else (draft, length, None)))
    forwards = 0

    def counted(so_far):
        nonlocal forwards
        forwards += 1
        return guess(so_far)

    async with Context(args.model) as ctx:
        generation = ctx.fill(prompt).generate(tokens, draft=counted if draft else None, schema=schema)
        await args.stream(generation)
        return {"tokens": generation.tokens, "forwards": forwards if draft else len(generation.tokens)}
