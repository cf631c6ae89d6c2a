"""fused.wit: sampling on the worker (paper, section 7.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from ..calls.arrays import packed
from ..calls.scores import Scores as TokenScores
from ..calls.values import Token
from ..errors import InvalidArgument
from ..inferlets.runs import Watch
from ..services.sampler_config import new_sampler
from ..services.stop_strings import StopStrings
from ..services.tokenizer import SHORT_TOKENS, Detokenizer
from ..texts import byte_size
from .guest import Guest
from .suspending import suspending, when_done


def create_sampler(guest: Guest, config: str) -> int:
    return guest.add_handle(new_sampler(config))


@suspending
def take_text(guest: Guest, future: int, detokenizer: int) -> Any:
    """Suspends until the token is there."""

    def take() -> tuple[int, str]:
        text = guest.handle(detokenizer, Detokenizer)
        token: int = guest.futures.take(future, Token).token
        return token, text.push_one(token)

    return when_done(guest, future, take)


# ---- decode runs ----


@suspending
def take_run(guest: Guest, run: int, detokenizer: int) -> Any:
    """Suspends until there are tokens, or the run is over."""
    text = _detokenizer(guest, run, detokenizer) if detokenizer else None
    return when_done(guest, run, lambda: _take_run(guest, run, text))


def _detokenizer(guest: Guest, run: int, detokenizer: int) -> Detokenizer:
    """One that knows all tokens that the run may give: where they come in, nothing can be refused any more."""
    text: Detokenizer = guest.handle(detokenizer, Detokenizer)
    if text.vocab_size < guest.futures.run(run).vocab_size:
        raise InvalidArgument(
            "the detokenizer belongs to another model, whose vocabulary is smaller: create one with a queue of the"
            " model of the run"
        )
    return text


def _take_run(guest: Guest, run: int, text: Detokenizer | None) -> tuple[Sequence[int], Sequence[str], bool, str]:
    """Takes as many tokens as take less than about a millisecond; the others wait for the next call."""
    taken = guest.futures.take_run(run, SHORT_TOKENS)
    texts: Sequence[str] = taken.texts or ()
    if taken.texts is None and text is not None:
        texts = [text.push_one(token) for token in taken.tokens]
    return taken.tokens, texts, taken.over, _packed_scores(taken.scores) if taken.scores else ""


def _packed_scores(scores: Sequence[TokenScores]) -> str:
    tokens, logprobs = (np.concatenate(column) for column in zip(*map(msgspec.structs.astuple, scores), strict=True))
    return packed(np.concatenate((tokens.astype("<u4"), logprobs.astype("<f4").view("<u4"))), "<u4")


class _WatchOptions(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON text of `watch-run`."""

    stop: list[str] = []
    held: str = ""
    send: bool = False
    more: bool = False
    frame: tuple[str, str] | None = None


def watch_run(guest: Guest, run: int, detokenizer: int, options: str) -> None:
    guest.futures.run(run)
    text = _detokenizer(guest, run, detokenizer)
    try:
        given = msgspec.json.decode(options or "{}", type=_WatchOptions)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidArgument(f"options are a JSON object with stop, held, send, more and frame: {error}") from None
    stop = StopStrings(given.stop, given.held)
    outlet = guest.inferlet.mail.sender if given.send else None
    most = guest.inferlet.limits.max_message_bytes
    if given.frame is not None and sum(map(byte_size, given.frame)) > most // 2:
        raise InvalidArgument(f"the frame has more than {most // 2} bytes, half of what a message may have")
    guest.inferlet.waits.watch_run(run, Watch(text, stop, outlet, most, given.more, given.frame))
    if outlet is None and not given.stop:
        guest.inferlet.reads_at_end(run)
