"""What a host that lies, or a defect, says of one inferlet costs that one, and nobody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from pie_control.calls.fused.runs import RunCommand
from pie_control.calls.kind import Adopt, Barrier, EndRun
from pie_control.errors import CallError
from pie_control.scheduling import Event, Opened, Reason
from tests.control.scheduling.test_decode_runs import begin, expected, run_of
from tests.helpers.scheduling import Inferlet, World

HUGE = 1 << 40


def check_that_one_ends(world: World, liar: Inferlet, honest: Inferlet) -> None:
    world.drain()
    assert liar.ending is not None
    assert liar.ending.reason is Reason.FAILED
    assert isinstance(liar.ending.error, CallError)
    assert honest.answers[run_of(honest)] == tuple(expected(6))
    again = begin(world, 6)
    world.drain()
    assert again.answers[run_of(again)] == tuple(expected(6))
    world.scheduler.check_integrity()


@pytest.mark.parametrize(
    "nonsense",
    [
        lambda owner: Barrier(owner, 1, 99, 0, 77, ((0, 55),)),
        lambda owner: Barrier(owner, 88, 99, 0, 77, ()),
        lambda owner: Adopt(owner, 55, 0, 0),
        lambda owner: EndRun(owner, 88, 1),
        lambda owner: Opened(owner, 2.0),
    ],
)
def test_an_event_that_cannot_be_ends_its_inferlet_alone(nonsense: Callable[[int], Event]) -> None:
    world = World()
    liar, honest = begin(world, 6), begin(world, 6)
    liar.accepted.add(77)
    world.turn(nonsense(liar.owner))
    check_that_one_ends(world, liar, honest)


@pytest.mark.parametrize(
    "lie", [{"embed": HUGE}, {"input": HUGE}, {"uniform": b"123"}, {"stop": [HUGE]}, {"steps": HUGE}, {"adapter": HUGE}]
)
@pytest.mark.parametrize("room", [64, 2])
def test_a_run_that_cannot_be_ends_its_inferlet_alone(lie: dict[str, Any], room: int) -> None:
    world = World(max_batch_tokens=room)
    liar, honest = begin(world, 6), begin(world, 6)
    for place, event in enumerate(world.events):
        if isinstance(event, RunCommand) and event.owner == liar.owner:
            world.events[place] = msgspec.structs.replace(event, **lie)
    check_that_one_ends(world, liar, honest)
