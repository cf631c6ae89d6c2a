from __future__ import annotations

import gzip
import random
from collections.abc import Iterator

import pytest

from pie_control.errors import RequestFailed
from pie_control.services.http.decoding import MEMBER_BYTES, MEMBERS, PIECE_BYTES, Gunzip


def pieces_of(gunzip: Gunzip, data: bytes) -> Iterator[bytes]:
    gunzip.feed(data)
    yield from iter(gunzip.piece, b"")


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_pieces_make_the_whole(step: int) -> None:
    choice = random.Random(step)
    data = bytes(choice.choices(b"abc", k=3000)) + b"x" * 200_000
    packed = gzip.compress(data[:5000]) + gzip.compress(data[5000:])  # two members
    gunzip = Gunzip()
    pieces = [piece for at in range(0, len(packed), step) for piece in pieces_of(gunzip, packed[at : at + step])]
    assert b"".join(pieces) == data
    assert not gunzip.is_cut_off


def test_a_bomb_comes_out_in_small_pieces() -> None:
    pieces = pieces_of(Gunzip(), gzip.compress(bytes(50 << 20)))
    assert [len(next(pieces)) for _ in range(5)] == [PIECE_BYTES] * 5


def test_what_is_not_gzip_is_told() -> None:
    with pytest.raises(RequestFailed, match="not gzip, as its header says"):
        list(pieces_of(Gunzip(), b"plain text"))


def test_few_members_may_be_empty() -> None:
    assert list(pieces_of(Gunzip(), gzip.compress(b"") * MEMBERS)) == []
    with pytest.raises(RequestFailed, match=f"has {MEMBERS + 1} files of gzip for 0 bytes"):
        list(pieces_of(Gunzip(), gzip.compress(b"") * (MEMBERS + 1)))


def test_many_members_may_hold_something() -> None:
    member = b"x" * MEMBER_BYTES
    assert b"".join(pieces_of(Gunzip(), gzip.compress(member) * 1000)) == member * 1000
    with pytest.raises(RequestFailed, match="files of gzip for"):
        list(pieces_of(Gunzip(), gzip.compress(member[: MEMBER_BYTES // 2]) * 1000))
