"""Which handler runs which batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..execution.launched import Outcome
from ..execution.served_model import ServedModel
from ..protocol import CopyKvpage, EmbedTxt, Forward, GetLogprobs, GetNextDist, Sample, SwapIn, SwapOut
from .copy_kvpage import copy_kvpage
from .embed_txt import embed_txt
from .forward import forward
from .get_logprobs import get_logprobs
from .get_next_dist import get_next_dist
from .sample import sample
from .swap import swap_in, swap_out

Handler = Callable[[ServedModel, Any], Outcome]

HANDLERS: Mapping[type, Handler] = {
    SwapOut: swap_out,
    SwapIn: swap_in,
    CopyKvpage: copy_kvpage,
    EmbedTxt: embed_txt,
    Forward: forward,
    Sample: sample,
    GetNextDist: get_next_dist,
    GetLogprobs: get_logprobs,
}
