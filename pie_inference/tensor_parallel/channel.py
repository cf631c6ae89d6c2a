"""Messages between the leader and a follower, over a pair of sockets that closes when either process ends."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from multiprocessing.connection import Connection

from ..errors import RankLost

NUM_FRAMES = 2


class RankChannel:
    """One end of the pair. All methods raise RankLost if the other process has ended."""

    def __init__(self, descriptor: int) -> None:
        self._connection: Connection[bytes, bytes] = Connection(descriptor)

    @staticmethod
    def pair() -> tuple[RankChannel, socket.socket]:
        """An end for this process, and a socket to pass on to the other process."""
        own, other = socket.socketpair()
        return RankChannel(own.detach()), other

    def send(self, frames: Sequence[bytes]) -> None:
        """Sends the frames of a message as `protocol.encode` makes them."""
        try:
            for frame in frames:
                self._connection.send_bytes(frame)
        except OSError as error:
            raise RankLost("a rank of the group has ended") from error

    def receive(self, seconds: float | None = None) -> list[bytes]:
        """Waits for a message, at most `seconds` seconds if given. Raises RankLost when they have passed."""
        try:
            if not self._connection.poll(seconds):
                raise RankLost(f"a rank of the group did not answer within {seconds:g} s")
            return [self._connection.recv_bytes() for _ in range(NUM_FRAMES)]
        except (EOFError, OSError) as error:
            raise RankLost("a rank of the group has ended") from error

    def close(self) -> None:
        """Closes this end. Idempotent."""
        self._connection.close()
