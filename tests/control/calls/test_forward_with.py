"""forward_with does what forward, forward_with_scores, forward_with_dist and forward_with_sampling do, in any
combination with a mask and an adapter."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from pie_control.calls.fused import continue_with_dist, forward_with
from pie_control.calls.fused.forward_with_dist import DistStep
from pie_control.errors import CallError, InvalidArgument, InvalidState, NotFound, QuotaExceeded
from pie_control.host_api.derived import functions
from tests.helpers.refusals import NO_QUEUE, Q, prepare, state
from tests.helpers.scheduling import Inferlet, greedy

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
    options: dict[str, Any],
    *,
    tokens: list[int] | None = None,
    inputs: list[int] = INPUT,
    outputs: list[int] | None = None,
    mask: list[int] | None = None,
    pages: list[int] = PAGES,
    queue: int = Q,
) -> int:
    wanted = forward_with.parse(json.dumps(options))
    positions = [3 + n for n in range(len(tokens or []))]
    outputs = [5, 1] if outputs is None else outputs
    sampler = None if wanted.sampler is None else greedy()
    future = inferlet.futures + wanted.reads
    lists = tokens or [], positions, inputs, pages, pages, outputs, mask or []
    forward_with.issue(inferlet.space, queue, *lists, wanted, sampler, future)
    inferlet.futures = future
    return future


READ: dict[str, dict[str, Any]] = {
    "nothing": {},
    "scores": {"scores": True},
    "dist": {"dist": {"k": 7, "temperature": 0.5}},
    "token": {"sampler": 1},
}
PLAIN: dict[str, tuple[str, tuple[Any, ...]]] = {
    "nothing": ("forward", ()),
    "scores": ("forward_with_scores", ()),
    "dist": ("forward_with_dist", (7, 0.5)),
    "token": ("forward_with_sampling", ()),
}


@pytest.mark.parametrize("read", READ)
def test_without_anything_beside_it_it_is_the_plain_call(read: str) -> None:
    """The commands are the same to the last field."""
    given: list[list[Any]] = []
    name, rest = PLAIN[read]
    rest = rest or (greedy(),) * (read == "token")
    for composed in (True, False):
        inferlet, handed_on = prepared()
        before = len(handed_on)
        steps = read in ("dist", "token")
        if not steps:
            inferlet.call("embed_txt", Q, [65], [3], INPUT)
        if composed:
            do(inferlet, READ[read], tokens=[65] if steps else None)
        elif steps:
            inferlet.call(name, Q, [65], [3], INPUT, CONTEXT, PAGES, 5, *rest)
        else:
            inferlet.call(name, Q, CONTEXT, INPUT, PAGES, [5, 1], *rest)
        given.append([(type(one), msgspec.msgpack.encode(one)) for one in handed_on[before:]])
    assert given[0] == given[1]


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("adapter", ["", "poet"])
@pytest.mark.parametrize("mask", [None, SEEN])
def test_mask_and_adapter_go_with_all_that_can_be_read(read: str, adapter: str, mask: list[int] | None) -> None:
    inferlet, handed_on = prepared()
    steps = read in ("dist", "token")
    if not steps:
        inferlet.call("embed_txt", Q, [65], [3], INPUT)
    before = len(handed_on)
    do(inferlet, {**READ[read], "adapter": adapter}, tokens=[65] if steps else None, mask=mask)
    commands = handed_on[before:]
    (passed,) = (one for one in commands if hasattr(one, "own"))
    assert passed.adapter == ADAPTERS.get(adapter, -1)
    assert (passed.own, passed.outputs) == (((3, 4),), ((5, 6),))
    if mask is None:
        assert (len(commands), passed.context.mask) == (1, None)
    else:
        assert len(commands) == (3 if steps else 1), "a step with a mask is the three calls that it is made of"
        seen = passed.context.mask
        assert list(zip(seen.rows.tolist(), seen.begins.tolist(), seen.ends.tolist(), strict=True)) == [
            (0, 0, 2),
            (0, 3, 4),
        ]
    assert commands[-1].future == (None if read == "nothing" else inferlet.futures)


def test_what_goes_on_from_a_step_has_its_adapter() -> None:
    inferlet, handed_on = prepared()
    do(inferlet, {"dist": {"k": 7}, "adapter": "painter"}, tokens=[65], pages=[0, 3])
    for token in range(8):  # within a page, and into the next one
        continue_with_dist.issue(inferlet.space, Q, token, inferlet.futures + 1)
        inferlet.futures += 1
    steps = [one for one in handed_on if isinstance(one, DistStep)]
    assert [one.adapter for one in steps] == [5] * 9
    assert [one.positions[0] for one in steps] == list(range(3, 12))
    assert {(one.k, one.temperature) for one in steps} == {(7, 1.0)}


def test_nothing_goes_on_from_a_step_whose_adapter_was_dropped_or_that_had_a_mask() -> None:
    inferlet, _ = prepared()
    do(inferlet, {"dist": {}, "adapter": "painter"}, tokens=[65])
    inferlet.space.adapters = {"poet": 3, "painter": 6}  # another one of this name
    with pytest.raises(NotFound, match=r"the adapter was dropped.*gives: poet, painter"):
        continue_with_dist.issue(inferlet.space, Q, 1, 9)
    inferlet.call("trim_kvpage", Q, PAGES, 3)
    do(inferlet, {"dist": {}}, tokens=[65], mask=SEEN)
    with pytest.raises(InvalidState, match="begin with `forward-with-dist`"):
        continue_with_dist.issue(inferlet.space, Q, 1, 9)


STEP = {"tokens": [65]}
REFUSED: list[tuple[type[CallError], str, dict[str, Any], dict[str, Any]]] = [
    (NotFound, NO_QUEUE, {}, {"queue": 9}),
    (NotFound, NO_QUEUE, {"dist": {}}, {**STEP, "queue": 9}),
    (NotFound, "has no adapter 'baker'; available-adapters gives: poet, painter", {"adapter": "baker"}, {}),
    (NotFound, "has no adapter 'baker'", {"adapter": "baker", "dist": {}}, STEP),
    (InvalidArgument, "tokens go with dist or sampler", {}, STEP),
    (InvalidArgument, "tokens go with dist or sampler", {"scores": True, "adapter": "poet"}, STEP),
    (InvalidArgument, "a step needs at least one token", {"dist": {}}, {"tokens": [], "inputs": []}),
    (InvalidArgument, "1 tokens, 1 positions and 2 embeds", {"sampler": 1}, {**STEP, "inputs": [4, 2]}),
    (InvalidArgument, "read one output embed", {"sampler": 1}, {**STEP, "outputs": []}),
    (InvalidArgument, "read one output embed", {"dist": {}}, {**STEP, "outputs": [5, 2]}),
    (InvalidArgument, "read one output embed", {"dist": {}}, {**STEP, "outputs": [5, 1, 6, 1]}),
    (InvalidArgument, "k is 999", {"dist": {"k": 999}}, STEP),
    (InvalidArgument, "temperature is 0", {"dist": {"temperature": 0}}, STEP),
    (InvalidArgument, "the mask ends within input 0 of 1", {"dist": {}}, {**STEP, "mask": [1]}),
    (InvalidArgument, "is not within the 4 columns", {"sampler": 1, "adapter": "poet"}, {**STEP, "mask": [1, 3, 9]}),
    (InvalidState, "embed 4 was never filled", {"adapter": "poet"}, {}),
    (InvalidState, "embed 4 was never filled", {"scores": True, "adapter": "poet"}, {"mask": SEEN}),
    (NotFound, "embed 99 is not allocated", {"adapter": "poet", "sampler": 1}, {**STEP, "outputs": [99, 1]}),
    (InvalidArgument, "token 999 is outside", {"adapter": "poet", "dist": {}}, {"tokens": [999], "mask": SEEN}),
]


@pytest.mark.parametrize(("error", "message", "options", "lists"), REFUSED)
def test_nothing_has_happened_if_a_part_is_refused(
    error: type[CallError], message: str, options: dict[str, Any], lists: dict[str, Any]
) -> None:
    inferlet, handed_on = prepared()
    before = state(inferlet), len(handed_on)
    with pytest.raises(error) as caught:
        do(inferlet, options, **lists)
    assert type(caught.value) is error
    assert message in str(caught.value)
    assert (state(inferlet), len(handed_on)) == before


def test_a_step_with_a_mask_is_refused_as_a_whole_if_three_commands_are_too_many() -> None:
    inferlet, handed_on = prepared()
    inferlet.space._most_waiting = inferlet.space.waiting + 2
    before = len(handed_on)
    with pytest.raises(QuotaExceeded, match="waiting commands"):
        do(inferlet, {"dist": {}}, tokens=[65], mask=SEEN)
    assert len(handed_on) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "options are a JSON object with adapter, scores, dist and sampler"),
        ('{"mask": []}', "unknown field `mask`"),
        ('{"dist": {"kk": 1}}', "unknown field `kk`"),
        ('{"adapter": 3}', "Expected `str`, got `int`"),
        ('{"sampler": "x"}', "Expected `int | null`, got `str`"),
        ('{"dist": {}, "sampler": 1}', "several of scores, dist and sampler"),
        ('{"scores": true, "sampler": 1}', "several of scores, dist and sampler"),
        ("[" * 10_000, "options are a JSON object"),
    ],
)
def test_options_are_read_strictly(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        forward_with.parse(text)
    assert message in str(caught.value)


def test_arguments_that_only_other_rooms_give_are_not_of_the_guest() -> None:
    signatures = {name: call.__signature__ for _, name, call in functions() if hasattr(call, "__signature__")}
    for name in ("forward", "forward_with_scores"):
        assert not {"mask", "adapter"} & set(signatures[name].parameters), name
