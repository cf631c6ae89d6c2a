"""How ranks make sure that a wave failed on all of them alike."""

from __future__ import annotations

from ..errors import RankLost
from ..execution.launched import LaunchedWave
from ..protocol import Failure, ProtocolError, WaveDone, WorkerFailed, decode_from_worker, encode
from .channel import RankChannel

AGREE_SECONDS = 20.0
"""In which every rank has come to the place where another one failed. They are less than a layer apart."""


def failures_of(launched: LaunchedWave) -> WaveDone | None:
    """What ranks tell each other of a wave that failed; None where it did not."""
    results = tuple(outcome if isinstance(outcome, Failure) else None for outcome in launched.outcomes)
    return WaveDone(launched.wave, results, 0.0) if any(results) else None


def compare(own: WaveDone, channel: RankChannel) -> None:
    """Tells the rank at the other end, which does the same. Raises RankLost where it did not fail alike."""
    channel.send(encode(own))
    try:
        other = decode_from_worker(channel.receive(AGREE_SECONDS))
    except ProtocolError:
        other = None
    if isinstance(other, WorkerFailed):
        raise RankLost(other.message)
    if not isinstance(other, WaveDone) or _places(other) != _places(own):
        first = next(result for result in own.results if isinstance(result, Failure))
        raise RankLost(f"a batch failed on one rank of the group only: {first.message}")


def _places(done: WaveDone) -> tuple[int, list[bool]]:
    return done.wave, [isinstance(result, Failure) for result in done.results]
