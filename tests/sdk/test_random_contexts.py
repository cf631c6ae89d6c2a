"""Random programs over contexts (random_contexts.py): each context goes on as its tokens say, whatever was done to it,
and all is given back."""

from __future__ import annotations

import gc
import random
from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferlet_sdk.dropped import give_back
from inferlet_sdk.sequences import sequence
from inferlet_sdk.sharing import prefixes
from tests.helpers.native_host import install, nothing_held
from tests.helpers.random_contexts import Program

MODELS: list[dict[str, Any]] = [{}, {"states": 400}, {"fixed_positions": "learned"}]


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32))
def test_contexts_go_on_as_their_tokens_say(model: dict[str, Any], seed: int) -> None:
    choice = random.Random(seed)
    sizes = {"page_size": choice.choice([4, 8, 16]), "max_queues": choice.choice([1, 2, 256, 256])}
    host = install(max_context=1000, **model, **sizes)
    host.tokens_at_once = choice.choice([1, 3, 100])
    least = choice.choice([sequence.LEAST_SHARED, sizes["page_size"] + 1, 2 * sizes["page_size"]])
    with patch.object(prefixes, "LEAST_SHARED", least), patch.object(sequence, "LEAST_SHARED", least):
        Program(host, choice, Counter()).play(choice.randint(3, 25))
    gc.collect()
    give_back()
    assert nothing_held(host)
