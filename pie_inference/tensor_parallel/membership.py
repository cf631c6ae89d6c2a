"""The first message from the leader to a follower."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..config import WorkerConfig


class Membership(msgspec.Struct, frozen=True):
    """A rank's place in its group."""

    rank: int
    size: int
    port: int  # at which the leader listens
    config: WorkerConfig


def encode_membership(membership: Membership) -> list[bytes]:
    """Encodes a membership as frames for a `RankChannel`."""
    return [msgspec.msgpack.encode(membership, enc_hook=str), b""]


def decode_membership(frames: list[bytes]) -> Membership:
    """Decodes the frames of `encode_membership`."""
    return msgspec.msgpack.decode(frames[0], type=Membership, dec_hook=lambda _, path: Path(path))
