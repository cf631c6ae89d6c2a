"""What a context means: its tokens, where they are, and which of them what comes sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from inferlet_sdk import Context


@dataclass(frozen=True)
class Placed:
    """A token of a context: its position, and whether what comes sees it."""

    token: int
    position: int
    seen: bool = True


@dataclass
class Twin:
    """A context, and what it means. `next`: the position of what is filled."""

    ctx: Context
    placed: list[Placed]
    next: int = 0

    @property
    def tokens(self) -> list[int]:
        return [one.token for one in self.placed]

    @property
    def has_output(self) -> bool:
        return bool(self.placed) and self.placed[-1].seen

    def state(self, more: Sequence[int] = ()) -> tuple[tuple[int, int], ...]:
        behind = ((token, self.next + n) for n, token in enumerate(more))
        return (*((one.token, one.position) for one in self.placed if one.seen), *behind)

    def copy(self, ctx: Context) -> Twin:
        return Twin(ctx, self.placed.copy(), self.next)

    def add(self, tokens: Sequence[int]) -> None:
        self.placed += [Placed(token, self.next + n) for n, token in enumerate(tokens)]
        self.next += len(tokens)

    def cut(self, length: int) -> None:
        if length < len(self.placed):
            last = self.placed[length - 1]
            self.next = last.position + 1 if last.seen else self.placed[length].position
            del self.placed[length:]

    def drop(self, start: int, stop: int, close_gap: bool) -> None:
        gone = [n for n in range(start, stop) if self.placed[n].seen]
        for n in gone:
            self.placed[n] = replace(self.placed[n], seen=False)
        behind = stop
        while behind < len(self.placed) and not self.placed[behind].seen:
            behind += 1
        if close_gap and self.ctx.model.moves_tokens:
            moved = [replace(one, position=one.position - len(gone)) for one in self.placed[behind:]]
            self.placed[behind:] = moved
            self.next -= len(gone)


def joined(ctx: Context, parts: Sequence[Twin]) -> Twin:
    """The parts behind each other, moved if the model can move tokens; the last token runs again, behind all."""
    found, behind = Twin(ctx, []), 0
    for place, part in enumerate(parts):
        count = len(part.placed) - (place == len(parts) - 1)
        end = part.placed[count].position if count < len(part.placed) else part.next
        seen = [one for one in part.placed[:count] if one.seen]
        by = max(behind - seen[0].position, 0) if seen and ctx.model.moves_tokens else 0
        found.placed += [replace(one, position=one.position + by) for one in seen]
        behind = max(behind, end + by)
    found.next = max(behind, len(found.placed))
    found.add(parts[-1].tokens[-1:])
    return found
