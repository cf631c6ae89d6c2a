"""The pace of a worker that stands in for a GPU, as text: `15ms`, or `15ms+20us`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from . import OptionError

TIME = r"(\d+(?:\.\d+)?)(s|ms|us)"
PACE = re.compile(rf"{TIME}(?:\+{TIME})?")
PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000}


@dataclass(frozen=True)
class Pace:
    """How long a wave takes: `wave` seconds, and `token` more for each input token of its forwards."""

    wave: float
    token: float = 0.0

    def seconds(self, tokens: int) -> float:
        """The time of a wave with this number of input tokens."""
        return self.wave + self.token * tokens


def parse_pace(text: str) -> Pace:
    """The pace that a text says: the time of a wave, and after a plus sign that of a token. Raises OptionError."""
    found = PACE.fullmatch(text)
    if found is None:
        raise OptionError(
            f"a pace is the time of a wave, with `+` and the time of a token behind it or not, such as 15ms or "
            f"15ms+20us (units: {', '.join(PER_SECOND)}), not {text!r}"
        )
    wave, wave_unit, token, token_unit = found.groups()
    return Pace(float(wave) / PER_SECOND[wave_unit], float(token) / PER_SECOND[token_unit] if token else 0.0)
