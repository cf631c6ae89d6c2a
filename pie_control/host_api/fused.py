"""fused.wit: sampling on the worker (paper, section 7.4)."""

from __future__ import annotations

from typing import Any

from ..calls.fused.sample import Token
from ..calls.sampler import Sampler
from ..services.tokenizer import Detokenizer
from .guest import Guest
from .sampler_config import new_sampler
from .suspending import suspending, when_done


def create_sampler(guest: Guest, config: str) -> int:
    return guest.add_handle(new_sampler(config))


def destroy_sampler(guest: Guest, sampler: int) -> None:
    guest.drop_handle(sampler, Sampler)


@suspending
def take_text(guest: Guest, future: int, detokenizer: int) -> Any:
    """Suspends until the token is there."""

    def take() -> tuple[int, str]:
        text = guest.handle(detokenizer, Detokenizer)
        token: int = guest.futures.take(future, Token).token
        return token, text.push((token,))

    return when_done(guest, future, take)
