"""The output embed of a sequence, which sequences that are forked from it read too, until they write another one."""

from __future__ import annotations

from inferlet_sdk import traits
from inferlet_sdk.addresses import Embeds
from inferlet_sdk.sequences.queues import Queue


class _Shared:
    """An output embed of several sequences, as a range: nobody writes to it."""

    __slots__ = ("embed", "holders")

    def __init__(self, embed: list[int]) -> None:
        self.embed = embed
        self.holders = 1


class OutputEmbed:
    """The output embed of one sequence, once there is one. `own` is it as a range, which the sequence may write to;
    empty if there is none, or if it is shared."""

    __slots__ = ("_shared", "own")

    def __init__(self) -> None:
        self.own: list[int] = []
        self._shared: _Shared | None = None

    @property
    def address(self) -> int:
        """Only for reading."""
        return self.own[0] if self._shared is None else self._shared.embed[0]

    def share_with(self, child: OutputEmbed) -> None:
        """Both hold it from now on, if there is one; the child has none."""
        if self._shared is None and not self.own:
            return
        if self._shared is None:
            self._shared, self.own = _Shared(self.own), []
        self._shared.holders += 1
        child._shared = self._shared

    def take(self, queue: Queue, keep: bool = False) -> None:
        """Has one of its own; with what the shared one holds, if `keep`."""
        shared = self._shared
        if shared is None:
            if not self.own:
                self.own = queue.take_output()
        elif shared.holders == 1:
            self.own, self._shared = shared.embed, None
        else:
            own = queue.take_output()
            if keep:
                traits.copy_emb(queue.number, Embeds(shared.embed), Embeds(own))
            self.own, self._shared = own, None
            shared.holders -= 1
            if not shared.holders:  # the others were dropped meanwhile
                traits.dealloc_emb(queue.number, Embeds(shared.embed))

    def leave_to(self, queue: Queue) -> None:
        """Leaves its own, if it has one, to the next context with the queue, which is idle."""
        if self.own and not queue.output:
            queue.output, self.own = self.own, []

    def replace(self, queue: int, embed: Embeds) -> None:
        """Owns this embed from now on, in place of the one it had."""
        self.release(queue)
        self.own = list(embed.ranges)

    def release(self, queue: int) -> None:
        """Gives it back, if nobody else holds it."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.holders -= 1
            self.own = [] if shared.holders else shared.embed
        if self.own:
            traits.dealloc_emb(queue, Embeds(self.own))
            self.own = []
