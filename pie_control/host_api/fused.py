"""fused.wit: sampling on the worker (paper, section 7.4)."""

from __future__ import annotations

from typing import Any

from ..calls.fused.sample import Token
from ..calls.sampler import Sampler
from ..sandbox.fibers import SUSPEND
from ..services.tokenizer import Detokenizer
from .guest import Guest
from .sampler_config import new_sampler
from .suspending import suspending


def create_sampler(guest: Guest, config: str) -> int:
    return guest.add_handle(new_sampler(config))


def destroy_sampler(guest: Guest, sampler: int) -> None:
    guest.drop_handle(sampler, Sampler)


@suspending
def take_text(guest: Guest, future: int, detokenizer: int) -> Any:
    """Suspends until the token is there."""

    def take(_: object = None) -> tuple[int, str]:
        text = guest.handle(detokenizer, Detokenizer)
        token: int = guest.futures.take(future, Token).token
        return token, text.push((token,))

    if guest.futures.done((future,)):
        return take()
    guest.inferlet.await_futures([future], take)
    return SUSPEND
