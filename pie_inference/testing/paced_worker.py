"""`python -m pie_inference.testing.paced_worker`: a worker process that stands in for a GPU.

To the control process it is a worker like any other. It answers each wave after a given time, sleeps meanwhile, and
takes next to no processor time, as a process that waits for a GPU; its answers mean nothing (`paced_model`). So what a
server takes beyond the given time is the price of the control layer, on any machine.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext

from ..config import add_config_arguments, add_place_arguments, read_place
from ..errors import ConfigError
from ..options import OptionError, WorkerOptions, given_options, lifetime
from ..options.pace import parse_pace
from ..protocol import DropAdapter, LoadAdapter, RunWave, Shutdown
from ..serving import sessions
from ..serving.sessions import Transport
from .paced_model import PacedModel

PR_SET_TIMERSLACK = 29
LARGE_BATCHES = {"max_batch_tokens": 4096, "max_batch_rows": 1024}
"""Limits as of a large GPU, where the command line names none."""


def serve(transport: Transport, model: PacedModel) -> None:
    """Answers messages until `Shutdown`.

    A wave that is there when the one before ends begins at that moment; else it begins when it arrives. As the wave
    before was slept through, one that is found without waiting is taken to have come meanwhile.
    """
    free = time.perf_counter()  # when the wave before ended
    while True:
        message = transport.receive_nowait()
        if message is None:
            message = transport.receive()
            free = time.perf_counter()
        if isinstance(message, Shutdown):
            return
        if isinstance(message, LoadAdapter):
            transport.send(model.load_adapter(message))
            continue
        if isinstance(message, DropAdapter):
            continue
        if not isinstance(message, RunWave):
            transport.send(sessions.greet(model, message))
            continue
        done = model.run(message)
        free += done.seconds
        time.sleep(max(0.0, free - time.perf_counter()))
        transport.send(done)


def wake_up_in_time() -> None:
    """Lets the system wake this process as soon as a sleep is over: usually it takes up to 50 us more."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the worker. Returns the exit status: 0, 1 if serving failed, 2 for wrong options."""
    lifetime.ignore_signals()
    given = parse(arguments)
    try:
        options = WorkerOptions(**{**LARGE_BATCHES, **given_options(given)})
        model = PacedModel(given.name, parse_pace(given.pace), options)
        place = read_place(given)
    except (OptionError, ConfigError) as error:
        print(error, file=sys.stderr)
        return 2
    if given.parent is not None:
        lifetime.die_with(given.parent)
    if place.listen is not None:
        lifetime.heed_signals()
    wake_up_in_time()
    return sessions.run(place, lambda: nullcontext(model), serve)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of a worker and `--pace`; exits as argparse does."""
    parser = argparse.ArgumentParser("pie_inference.testing.paced_worker", allow_abbrev=False)
    parser.add_argument("--pace", required=True, help="time of a wave, and of each token: 15ms or 15ms+20us")
    add_place_arguments(parser)
    parser.add_argument("--name", required=True, help="name under which the model is served")
    parser.add_argument("--model", help="ignored, as are all options about weights and devices")
    add_config_arguments(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
