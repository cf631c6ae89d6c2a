"""What raw calls mean does not depend on what they are batched with, split into, or delayed by.

`PIE_RANDOM_PROGRAMS=50000 pytest tests/control/scheduling/test_meaning.py` runs more programs than usual. With
`PIE_RANDOM_FIRST=1234`, these begin with the one of seed 1234, so that a long run can be cut in pieces and a program
that fails can be run alone.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.helpers.random_calls import run_random_programs, write_adapters
from tests.helpers.tiers import corpus

SHARES = 5
FIRST = int(os.environ.get("PIE_RANDOM_FIRST", "0"))
PROGRAMS = int(os.environ.get("PIE_RANDOM_PROGRAMS", "1000"))


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_adapters(tmp_path_factory.mktemp("adapters"))


@pytest.mark.parametrize("share", corpus(range(SHARES), kind=lambda _: "random programs"))
def test_random_programs_are_told_what_their_calls_mean(share: int, adapters: dict[str, Path]) -> None:
    made: Counter[str] = Counter()
    for seed in range(FIRST + share, FIRST + PROGRAMS, SHARES):
        try:
            run_random_programs(seed, made, adapters=adapters)
        except AssertionError as error:
            raise AssertionError(f"programs of seed {seed}: {error}") from error
    refused = {
        f"{name} refused"
        for name in (
            "forward",
            "embed_img",
            "sample",
            "set_positions",
            "copy_kvpage",
            "copy_emb",
            "mask_kvpage",
            "shift_kvpage",
            "forward_with_mask",
            "forward_with_adapter",
            "forward_with_scores",
            "forward_with_adapter_and_scores",
            "forward_with_dist",
            "forward_with_sampling",
            "continue_with_dist",
            "export_kvpage",
            "decode",
        )
    }
    accepted = {name.removesuffix(" refused") for name in refused}
    lists = {"get_logprobs", "get_next_dist"}
    chosen = {
        "forward with several things",
        "reserved pages",
        "verify",
        "decode with a matcher",
        "sample with log-probabilities",
    }
    tried = {"ended", "cancelled", "imported", *lists, *chosen, *refused, *accepted}
    assert made.keys() >= tried or PROGRAMS < 1000, f"{tried - made.keys()} is not tried"
