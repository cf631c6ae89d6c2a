"""Which handler runs which batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..execution.launched import Outcome
from ..execution.served_model import ServedModel
from ..protocol import CopySlots, EmbedText, Forward, NextDist, Sample, ScoreTokens, SwapIn, SwapOut
from .copy_slots import copy_slots
from .embed_text import embed_text
from .forward import forward
from .next_dist import next_dist
from .sample import sample
from .score_tokens import score_tokens
from .swap import swap_in, swap_out

Handler = Callable[[ServedModel, Any], Outcome]

HANDLERS: Mapping[type, Handler] = {
    SwapOut: swap_out,
    SwapIn: swap_in,
    CopySlots: copy_slots,
    EmbedText: embed_text,
    Forward: forward,
    Sample: sample,
    NextDist: next_dist,
    ScoreTokens: score_tokens,
}
