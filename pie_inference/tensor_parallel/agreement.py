"""How ranks make sure that all of them have met the same failure, before they go on."""

from __future__ import annotations

from ..errors import RankLost
from ..protocol import Failure, ProtocolError, WaveDone, WorkerFailed, decode_from_worker, encode
from .channel import RankChannel

AGREE_SECONDS = 20.0
"""In which every rank has come to the place where another one failed. They are less than a layer apart."""


def agree(wave: int, failure: Failure, channel: RankChannel) -> None:
    """Tells the rank at the other end, which does the same. Raises RankLost where it has not met a failure in the same
    place; why it failed may be told in other words."""
    channel.send(encode(WaveDone(wave, (), 0.0, (failure,))))
    try:
        other = decode_from_worker(channel.receive(AGREE_SECONDS))
    except ProtocolError:
        other = None
    if isinstance(other, WorkerFailed):
        raise RankLost(other.message)
    if not isinstance(other, WaveDone) or _places(other) != (wave, [(failure.batch, failure.command)]):
        raise RankLost(f"a batch failed on one rank of the group only: {failure.message}")


def _places(done: WaveDone) -> tuple[int, list[tuple[int, int]]]:
    return done.wave, [(failure.batch, failure.command) for failure in done.failures]
