"""Mirostat against the algorithm as its paper states it."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from inferlet_sdk import Context, Mirostat
from inferlet_sdk.event_loop import run
from inferlet_sdk.traits import Dist
from tests.helpers.native_host import install


def dist(probabilities: list[float]) -> Dist:
    """Tokens 0, 1, ... with these probabilities."""
    from base64 import b64encode

    tokens = np.arange(len(probabilities), dtype=np.uint32)
    return Dist(
        b64encode(tokens.tobytes()).decode(), b64encode(np.array(probabilities, np.float32).tobytes()).decode(), 0.0
    )


def zipf(size: int, exponent: float) -> list[float]:
    weights = np.arange(1, size + 1) ** -exponent
    return [float(one) for one in weights / weights.sum()]


def test_it_chooses_as_the_paper_says() -> None:
    sampler, drawn, bound = Mirostat(3.0, rate=0.2, seed=5), random.Random(5), 6.0
    for step in range(200):
        given = dist(zipf(200, 0.7 + step % 5 / 4))
        probabilities = np.array(given.probabilities)
        allowed = np.flatnonzero(-np.log2(probabilities) <= bound)
        allowed = allowed if len(allowed) else np.array([0])
        cumulative = np.cumsum(probabilities[allowed])
        expected = allowed[np.searchsorted(cumulative, drawn.random() * cumulative[-1], "right")]
        token = sampler(given)
        assert token == expected
        bound -= 0.2 * (-math.log2(probabilities[token]) - 3.0)
        assert sampler.bound == pytest.approx(bound)


def test_surprise_stays_near_the_target() -> None:
    sampler = Mirostat(5.0, seed=1)
    given = dist(zipf(5000, 1.0))
    surprises = [-math.log2(given.probabilities[sampler(given)]) for _ in range(3000)]
    assert np.mean(surprises[200:]) == pytest.approx(5.0, abs=0.1)


def test_a_certain_token_is_chosen_whatever_the_bound() -> None:
    sampler = Mirostat(0.0, seed=1)
    assert [sampler(dist([0.5, 0.25, 0.25])) for _ in range(3)] == [0, 0, 0]
    assert sampler(dist([1.0, 0.0])) == 0


def test_contexts_take_it_as_their_sampler() -> None:
    install()
    texts = [Context().fill("abc") for _ in range(2)]
    made = [run(one.generate_until(max_tokens=8, sampler=Mirostat(4.0, seed=3))) for one in texts]
    assert made[0] == made[1] != ""


def test_a_wrong_target_is_told() -> None:
    with pytest.raises(TypeError, match="target"):
        Mirostat("much")  # type: ignore[arg-type]
