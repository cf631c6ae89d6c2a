"""The process of a rank that the leader started: `python -m pie_inference.serving.follower DESCRIPTOR PARENT`."""

from __future__ import annotations

import os
import sys
from functools import partial

from .. import protocol as wire
from ..adapters.loading import AdapterLoad
from ..device.machine import choose_device
from ..errors import InferenceError
from ..options import lifetime
from ..tensor_parallel.agreement import agree
from ..tensor_parallel.channel import RankChannel
from ..tensor_parallel.collectives import follow
from ..tensor_parallel.membership import Membership, decode_membership
from .worker import Worker


def serve(channel: RankChannel, worker: Worker) -> None:
    """Does what the leader does, until it says goodbye. Drops the results of waves: the leader has the same ones."""
    loads: dict[int, AdapterLoad] = {}
    while True:
        match message := wire.decode_to_worker(channel.receive()):
            case wire.RunWave():
                worker.launch(message, partial(agree, message.wave, channel=channel))
            case wire.LoadAdapter():
                loads[message.number] = worker.begin_adapter(message)
            case wire.InstallAdapter():
                channel.send(wire.encode(loads.pop(message.number).install()))
            case wire.DropAdapter():
                worker.drop_adapter(message)
            case _:
                return


def load(membership: Membership) -> Worker:
    """Joins the group and loads this rank's share of the model."""
    device = choose_device(membership.config.device, membership.rank, membership.size)
    return Worker(membership.config, follow(membership.port, membership.rank, membership.size, device))


def run(channel: RankChannel) -> int:
    """Serves until the leader ends it. Returns 0, or 1 after it has sent the reason to the leader and to stderr."""
    membership = decode_membership(channel.receive())
    try:
        worker = load(membership)
        channel.send(wire.encode(wire.Ready(wire.PROTOCOL_VERSION, os.getpid(), worker.describe())))
        serve(channel, worker)
    except (InferenceError, wire.ProtocolError, MemoryError, RuntimeError) as error:
        print(f"rank {membership.rank}: {error}", file=sys.stderr)
        channel.send(wire.encode(wire.WorkerFailed(str(error))))
        return 1
    return 0


def main(descriptor: int, parent: int) -> int:
    """Entry point."""
    lifetime.ignore_signals()
    lifetime.die_with(parent)
    return run(RankChannel(descriptor))


if __name__ == "__main__":
    status = main(*map(int, sys.argv[1:]))
    sys.stderr.flush()
    os._exit(status)  # like the leader, without ending torch in order
