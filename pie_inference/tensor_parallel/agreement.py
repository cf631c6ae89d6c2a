"""Makes sure that all ranks have met the same failure, before they go on."""

from __future__ import annotations

from ..errors import RankLost
from ..protocol import Failure, ProtocolError, WaveDone, WorkerFailed, decode_from_worker, encode
from .channel import RankChannel

AGREE_SECONDS = 20.0
"""Seconds within which every rank reaches the place where another rank failed. They are less than a layer apart."""


def agree(wave: int, failure: Failure, channel: RankChannel) -> None:
    """Exchanges the failure with the rank at the other end. Raises RankLost if that rank has not failed in the same
    place; its message may differ."""
    channel.send(encode(WaveDone(wave, (), 0.0, (failure,))))
    try:
        other = decode_from_worker(channel.receive(AGREE_SECONDS))
    except ProtocolError:
        other = None
    if isinstance(other, WorkerFailed):
        raise RankLost(other.message)
    if not isinstance(other, WaveDone) or _places(other) != (wave, [(failure.batch, failure.command)]):
        raise RankLost(f"a batch failed on only one rank of the group: {failure.message}")


def _places(done: WaveDone) -> tuple[int, list[tuple[int, int]]]:
    return done.wave, [(failure.batch, failure.command) for failure in done.failures]
