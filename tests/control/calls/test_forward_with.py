"""A forward with what can go beside it, in any combination: tokens, a mask, an adapter, and what is read."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pie_control.calls.forward.batch import ForwardCommand
from pie_control.calls.forward.command import PassCommand
from pie_control.calls.fused.step import DistStep, SampleStep
from pie_control.calls.input_text.embed_txt import EmbedCommand
from pie_control.calls.introspective_forward import forward_with_scores
from pie_control.calls.introspective_forward.forward_with_scores import ScoresCommand
from pie_control.calls.sampler import Sampler, SamplingParams, make_bias
from pie_control.errors import CallError, InvalidArgument, InvalidState, NotFound, QuotaExceeded
from tests.helpers.refusals import NO_QUEUE, Q, prepare, state
from tests.helpers.scheduling import Inferlet, beside, greedy

OUTSIDE = Sampler(SamplingParams(temperature=0), 0, make_bias([(300, 1.0)]))
ADAPTERS = {"poet": 3, "painter": 5}
CONTEXT, INPUT, PAGES = [0, 1], [4, 1], [0, 1]
SEEN = [2, 0, 2, 3, 1]
"""Of the first three tokens the first two, and the input itself."""


def prepared() -> tuple[Inferlet, list[Any]]:
    inferlet, handed_on = prepare(queues=1)
    inferlet.space.adapters = ADAPTERS
    return inferlet, handed_on


def do(
    inferlet: Inferlet,
    read: dict[str, Any],
    *,
    tokens: list[int] | None = None,
    inputs: list[int] = INPUT,
    outputs: list[int] | None = None,
    mask: list[int] | None = None,
    pages: list[int] = PAGES,
    queue: int = Q,
) -> None:
    positions = [3 + n for n in range(len(tokens or []))]
    outputs = [5, 1] if outputs is None else outputs
    given = beside(tokens or [], positions, mask or [], **read)
    inferlet.call("forward", queue, pages, inputs, pages, outputs, *given)


READ: dict[str, dict[str, Any]] = {
    "nothing": {},
    "scores": {"scores": True},
    "dist": {"k": 7, "temperature": 0.5},
    "token": {"sampler": greedy()},
}
KINDS = {"nothing": ForwardCommand, "scores": ScoresCommand, "dist": DistStep, "token": SampleStep}


@pytest.mark.parametrize("read", READ)
def test_a_step_that_reads_is_one_command_and_others_are_two(read: str) -> None:
    inferlet, handed_on = prepared()
    before = len(handed_on)
    do(inferlet, READ[read], tokens=[65])
    kinds = [type(one) for one in handed_on[before:]]
    assert kinds == ([] if read in ("dist", "token") else [EmbedCommand]) + [KINDS[read]]


@pytest.mark.parametrize("read", READ)
def test_inputs_that_are_filled_already_run_as_those_that_are_filled_here(read: str) -> None:
    """What passes through the Transformer is the same to the last field."""
    passes: list[dict[str, Any]] = []
    for filled in (True, False):
        inferlet, handed_on = prepared()
        before = len(handed_on)
        if filled:
            inferlet.call("embed_txt", Q, [65], [3], INPUT)
        do(inferlet, READ[read], tokens=None if filled else [65])
        commands = handed_on[before:]
        assert commands[-1].future == (None if read == "nothing" else inferlet.futures)
        (passed,) = (one for one in commands if hasattr(one, "own"))
        passes.append({name: getattr(passed, name) for name in PassCommand.__struct_fields__})
    different = {name for name, value in passes[0].items() if str(value) != str(passes[1][name])}
    assert different <= {"seq", "future"}


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("adapter", ["", "poet"])
@pytest.mark.parametrize("mask", [None, SEEN])
def test_mask_and_adapter_go_with_all_that_can_be_read(read: str, adapter: str, mask: list[int] | None) -> None:
    inferlet, handed_on = prepared()
    before = len(handed_on)
    do(inferlet, {**READ[read], "adapter": adapter}, tokens=[65], mask=mask)
    commands = handed_on[before:]
    (passed,) = (one for one in commands if hasattr(one, "own"))
    assert passed.adapter == ADAPTERS.get(adapter, -1)
    assert (passed.own, passed.outputs) == (((3, 4),), ((5, 6),))
    if mask is None:
        assert passed.context.mask is None
    else:
        assert len(commands) == (3 if read in ("dist", "token") else 2), "a step with a mask is handed on in parts"
        seen = passed.context.mask
        assert list(zip(seen.rows.tolist(), seen.begins.tolist(), seen.ends.tolist(), strict=True)) == [
            (0, 0, 2),
            (0, 3, 4),
        ]
    assert commands[-1].future == (None if read == "nothing" else inferlet.futures)


STEP = {"tokens": [65]}
REFUSED: list[tuple[type[CallError], str, dict[str, Any], dict[str, Any]]] = [
    (NotFound, NO_QUEUE, {}, {"queue": 9}),
    (NotFound, NO_QUEUE, {"temperature": 1.0}, {**STEP, "queue": 9}),
    (NotFound, "has no adapter 'baker'; it has: poet, painter", {"adapter": "baker"}, {}),
    (NotFound, "has no adapter 'baker'", {"adapter": "baker", "temperature": 1.0}, STEP),
    (InvalidArgument, "a forward needs at least one input embed", {"temperature": 1.0}, {"tokens": [], "inputs": []}),
    (InvalidArgument, "1 tokens, 1 positions and 2 embeds", {}, {**STEP, "inputs": [4, 2]}),
    (InvalidArgument, "2 output embeds for 1 inputs", {}, {**STEP, "outputs": [5, 2]}),
    (InvalidArgument, "pairs, more than", {"scores": True}, STEP),
    (InvalidArgument, "one can be read at once", {"scores": True, "temperature": 1.0}, STEP),
    (InvalidArgument, "one can be read at once", {"sampler": greedy(), "k": 3}, STEP),
    (InvalidArgument, "logit_bias names token 300", {"sampler": OUTSIDE}, STEP),
    (InvalidArgument, "logit_bias names token 300", {"sampler": OUTSIDE}, {"inputs": [0, 1]}),
    (InvalidArgument, "1 tokens, 1 positions and 2 embeds", {"sampler": greedy()}, {**STEP, "inputs": [4, 2]}),
    (InvalidArgument, "is read at one output embed", {"sampler": greedy()}, {**STEP, "outputs": []}),
    (InvalidArgument, "is read at one output embed", {"temperature": 1.0}, {**STEP, "outputs": [5, 2]}),
    (InvalidArgument, "is read at one output embed", {"temperature": 1.0}, {**STEP, "outputs": [5, 1, 6, 1]}),
    (InvalidArgument, "k is 999", {"k": 999, "temperature": 1.0}, STEP),
    (InvalidArgument, "temperature is 0", {"k": 5}, STEP),
    (InvalidArgument, "the mask ends within input 0 of 1", {"temperature": 1.0}, {**STEP, "mask": [1]}),
    (
        InvalidArgument,
        "is not within the 4 columns",
        {"sampler": greedy(), "adapter": "poet"},
        {**STEP, "mask": [1, 3, 9]},
    ),
    (InvalidState, "embed 4 was never filled", {"adapter": "poet"}, {}),
    (InvalidState, "embed 4 was never filled", {"scores": True, "adapter": "poet"}, {"mask": SEEN}),
    (NotFound, "embed 99 is not allocated", {"adapter": "poet", "sampler": greedy()}, {**STEP, "outputs": [99, 1]}),
    (InvalidArgument, "token 999 is outside", {"adapter": "poet", "temperature": 1.0}, {"tokens": [999], "mask": SEEN}),
]


@pytest.mark.parametrize(("error", "message", "read", "lists"), REFUSED)
def test_nothing_has_happened_if_a_part_is_refused(
    error: type[CallError],
    message: str,
    read: dict[str, Any],
    lists: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "pairs" in message:
        monkeypatch.setattr(forward_with_scores, "MOST_PAIRS", 3)
    inferlet, handed_on = prepared()
    before = state(inferlet), len(handed_on)
    with pytest.raises(error) as caught:
        do(inferlet, read, **lists)
    assert type(caught.value) is error
    assert message in str(caught.value)
    assert (state(inferlet), len(handed_on)) == before


def test_a_step_with_a_mask_is_refused_as_a_whole_if_three_commands_are_too_many() -> None:
    inferlet, handed_on = prepared()
    most = inferlet.space._most_waiting = inferlet.space.waiting + 2
    inferlet.space.ledger.quota = dataclasses.replace(inferlet.space.ledger.quota, commands=most)
    before = len(handed_on)
    with pytest.raises(QuotaExceeded, match="waiting commands"):
        do(inferlet, {"temperature": 1.0}, tokens=[65], mask=SEEN)
    assert len(handed_on) == before
