"""The step of a sequence from which the next one can go on with one call of two numbers (`continue_with_dist`)."""

from __future__ import annotations

from inferlet_sdk.sequences.page_table import PageTable

MOST_NUMBERS = 64
"""In the lists of pages of such a step."""


class LastStep:
    """A step that gave a distribution, up to token `stop`, and with what. The lists are compared by identity: who
    changes one makes a new one."""

    __slots__ = ("context", "embed", "k", "output", "stop", "temperature")

    def __init__(self, stop: int, pages: PageTable, embed: list[int], k: int, temperature: float) -> None:
        self.stop: int = stop
        self.context, self.output = pages.context, pages.output
        self.embed: list[int] = embed
        self.k, self.temperature = k, temperature

    @property
    def is_short(self) -> bool:
        """Whether the host remembers such lists."""
        return len(self.context) + len(self.output) <= MOST_NUMBERS
