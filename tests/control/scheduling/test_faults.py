"""What a host that lies, or a defect, says of one inferlet costs that one, and nobody else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from pie_control.calls.allocate.copy_emb import CopyEmbCommand
from pie_control.calls.exports.sharing import Offer
from pie_control.calls.forward.batch import ForwardCommand
from pie_control.calls.fused.runs import RunCommand
from pie_control.calls.input_text.embed_txt import EmbedCommand
from pie_control.calls.kind import Adopt, Barrier, Bind, Command, EndRun, OpenQueue
from pie_control.calls.sampler import Bias
from pie_control.errors import CallError
from pie_control.resources.holdings import Forgotten
from pie_control.resources.kinds import PAGES
from pie_control.resources.tables.addresses import MOST_ADDRESSES
from pie_control.resources.tables.contexts import Context, Mask
from pie_control.scheduling import Event, Opened, Reason
from tests.control.scheduling.test_decode_runs import begin, expected, run_of
from tests.helpers.integrity import check_scheduler
from tests.helpers.scheduling import Inferlet, World

HUGE = 1 << 40
FAR = 900, 901
ONE, NONE = np.ones(1, np.int32), np.zeros(0, np.int32)


def check_that_one_ends(world: World, liar: Inferlet, honest: Inferlet) -> None:
    world.drain()
    assert liar.ending is not None
    assert liar.ending.reason is Reason.FAILED
    assert isinstance(liar.ending.error, CallError)
    assert honest.answers[run_of(honest)] == tuple(expected(6))
    again = begin(world, 6)
    world.drain()
    assert again.answers[run_of(again)] == tuple(expected(6))
    check_scheduler(world.scheduler)


@pytest.mark.parametrize(
    "nonsense",
    [
        lambda owner: [Barrier(owner, 1, 99, 0, 77, ((0, 55),))],
        lambda owner: [Barrier(owner, 88, 99, 0, 77, ())],
        lambda owner: [Barrier(owner, 1, 99, 0, 77, ()), Barrier(owner, 1, 99, 0, 78, ())],
        lambda owner: [Barrier(owner, 1, 99, 5, 77, ()), Barrier(owner, 1, 100, 5, 77, ())],
        lambda owner: [Adopt(owner, 55, 0, 0)],
        lambda owner: [EndRun(owner, 88, 1)],
        lambda owner: [Opened(owner, 2.0)],
        lambda owner: [OpenQueue(owner, 1)],
        lambda owner: [Forgotten(owner, [55])],
        lambda owner: [EmbedCommand(owner, 1, 99, 0, None, (), [65], (FAR,))],
        lambda owner: [CopyEmbCommand(owner, 1, 99, 0, None, (), ((2, 3),), (FAR,))],
        lambda owner: [
            Offer(owner, 1, 99, 0, 77, (), "name", (FAR,), np.zeros(4, np.int32), np.zeros(0, np.int32), ())
        ],
    ],
)
def test_an_event_that_cannot_be_ends_its_inferlet_alone(nonsense: Callable[[int], Sequence[Event]]) -> None:
    world = World()
    liar, honest = begin(world, 6), begin(world, 6)
    liar.accepted |= {77, 78}
    world.turn(*nonsense(liar.owner))
    check_that_one_ends(world, liar, honest)


def test_addresses_that_are_bound_are_not_bound_again() -> None:
    world = World()
    world.check_every = 1000  # what is bound is not what the liar's space counts
    liar, honest = begin(world, 6), begin(world, 6)
    world.turn(Bind(liar.owner, 1, 99, 0, None, (), PAGES, 0, 4))
    world.drain()
    assert honest.answers[run_of(honest)] == tuple(expected(6))
    for inferlet in (liar, honest):
        world.close(inferlet)
    world.drain()
    assert world.scheduler.statistics().pages.used == 0


def test_an_import_whose_addresses_are_taken_is_given_back() -> None:
    world = World()
    maker, liar = world.open(1, 1), world.open(1, 1)
    maker.call("export_kvpage", 1, "name", [0, 1], "")
    liar.call("import_kvpage", 1, "name")
    liar.space.imports.clear()  # so that it says nothing itself
    world.turn()
    world.turn(Adopt(liar.owner, 1, 0, 0))
    assert liar.ending is not None
    world.close(maker)
    world.drain()
    usage = world.scheduler.statistics()
    assert usage.pages.used == usage.export_pages == 1


@pytest.mark.parametrize(
    ("kind", "lie"),
    [
        (EmbedCommand, {"tokens": [65]}),
        (EmbedCommand, {"embeds": ((3, 2),)}),
        (EmbedCommand, {"references": ((3, 1),)}),
        (ForwardCommand, {"size": 2}),
        (ForwardCommand, {"size": -3}),
        (ForwardCommand, {"positions": ()}),
        (ForwardCommand, {"own": ((0, 2),)}),
        (ForwardCommand, {"outputs": ((0, 4),)}),
        (ForwardCommand, {"context": Context(((0, 4),), 3)}),
        (ForwardCommand, {"context": Context((), 0, mask=Mask(ONE, ONE, NONE, False))}),
        (ForwardCommand, {"context": Context((), 0, states=(0, 0))}),
        (RunCommand, {"own": ((3, 7),)}),
        (RunCommand, {"steps": 7}),
        (RunCommand, {"allowed": b"1"}),
        (RunCommand, {"bias": Bias(ONE, np.zeros(2, np.float32))}),
        (Bind, {"count": 0}),
        (Bind, {"first": -1}),
        (Bind, {"first": MOST_ADDRESSES}),
    ],
)
def test_a_command_whose_parts_do_not_fit_together_is_told(kind: type[Command], lie: dict[str, Any]) -> None:
    world = World()
    begin(world, 6)
    (first, *_) = [event for event in world.events if isinstance(event, kind)]
    assert not msgspec.structs.replace(first, **lie).fits(world.description)


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
