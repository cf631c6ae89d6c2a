from __future__ import annotations

import gzip
import random
from typing import Any

import pytest

from pie_control.errors import RequestFailed
from pie_control.services.http.decoding import PIECE_BYTES, gunzipped


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_pieces_make_the_whole(step: int) -> None:
    choice = random.Random(step)
    data = bytes(choice.choices(b"abc", k=3000)) + b"x" * 200_000
    packed = gzip.compress(data[:5000]) + gzip.compress(data[5000:])  # two members
    state: list[Any] = []
    pieces = [piece for at in range(0, len(packed), step) for piece in gunzipped(packed[at : at + step], state)]
    assert b"".join(pieces) == data
    assert state[0].eof


def test_a_bomb_comes_out_in_small_pieces() -> None:
    pieces = gunzipped(gzip.compress(bytes(50 << 20)), [])
    sizes = [len(next(pieces)) for _ in range(5)]
    assert max(sizes) <= PIECE_BYTES


def test_what_is_not_gzip_is_told() -> None:
    with pytest.raises(RequestFailed, match="not gzip, as its header says"):
        list(gunzipped(b"plain text", []))
