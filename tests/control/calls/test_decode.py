"""decode and reserved pages: what is refused, what a run holds, and what is known of it as it goes on."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from typing import Any

import pytest

from pie_control.calls.fused import decode
from pie_control.calls.fused.decode import MOST_STEPS
from pie_control.calls.fused.runs import RunCommand
from pie_control.calls.kind import EndRun
from pie_control.calls.sampler import Sampler, SamplingParams, make_bias
from pie_control.errors import Cancelled, InvalidArgument, InvalidState, NotFound, QuotaExceeded
from pie_control.resources.tables.contexts import Context
from tests.helpers.refusals import (
    GREEDY,
    HOLDS_AN_INPUT,
    NO_QUEUE,
    OTHER_QUEUE,
    Q,
    Refusal,
    check_refused,
    prepare,
    refusal,
)
from tests.helpers.scheduling import Inferlet
from tests.helpers.work import lines_of

OUTSIDE = Sampler(SamplingParams(temperature=0), 0, make_bias([(259, 1.0)]))
PENALTIES = Sampler(SamplingParams(temperature=0, frequency=0.5), 0)
ALL = [0, 4]  # pages; the first holds 3 tokens at positions 0 to 2


def decode_refused(error: type, message: str, **changed: Any) -> Any:
    """A run that would be accepted but for what is changed."""
    given = {"queue": Q, "embed": 2, "sampler": GREEDY, "input": 4, "position": 3, "context": ALL, "pages": ALL}
    arguments = {**given, "steps": 5, "stop": [9], "options": "", **changed}
    return refusal(error, message, "decode", *arguments.values())


REFUSED = [
    decode_refused(NotFound, NO_QUEUE, queue=9),
    decode_refused(InvalidState, HOLDS_AN_INPUT, embed=3),
    decode_refused(InvalidState, "embed 5 was never filled", embed=5),
    decode_refused(NotFound, "embed 8 is not allocated", input=8),
    decode_refused(InvalidArgument, "embed -1 is negative", input=-1),
    decode_refused(InvalidArgument, "1 to 1024 steps, not 0", steps=0),
    decode_refused(InvalidArgument, "1 to 1024 steps, not 1025: issue the others as further runs", steps=1025),
    decode_refused(InvalidArgument, "65 stop tokens are more than 64", stop=[1] * 65),
    decode_refused(InvalidArgument, "token 300 is outside of the vocabulary", stop=[300]),
    decode_refused(InvalidArgument, "position -1 is outside of the model's context of 40 tokens", position=-1),
    decode_refused(InvalidArgument, "position 40 is outside of the model's context", position=37),
    decode_refused(InvalidArgument, "position 41 is behind the model's context of 40", position=41, steps=1),
    decode_refused(InvalidArgument, "position 2147483648 is behind", position=2**31, steps=1),
    decode_refused(InvalidArgument, "the context has tokens at positions from 2 on, where the run begins", position=2),
    decode_refused(InvalidState, "a decode run of 15 steps needs 14 free slots, its pages have 13", steps=15),
    decode_refused(InvalidState, "needs 4 free slots, its pages have 0", pages=[]),
    decode_refused(NotFound, "KV page 4 is not allocated", context=[0, 5]),
    decode_refused(NotFound, "KV page 4 is not allocated", pages=[3, 2]),
    decode_refused(NotFound, "KV page 4 is not allocated", context=[0, 5], steps=1),
    decode_refused(InvalidArgument, "a JSON object with recent, window, allowed, logprobs", options="[1]"),
    decode_refused(InvalidArgument, "unknown field `stops`", options='{"stops": []}'),
    decode_refused(InvalidArgument, "41 recent tokens", options=f'{{"recent": {[1] * 41}}}'),
    decode_refused(InvalidArgument, "token 259 is outside", options='{"recent": [259]}', sampler=PENALTIES),
    decode_refused(InvalidArgument, "window is -1", options='{"window": -1}'),
    decode_refused(InvalidArgument, "window is 4294967296; it must lie", options='{"window": 4294967296}'),
    decode_refused(InvalidArgument, "window is 1000000", options=f'{{"window": {10**26}}}'),
    decode_refused(InvalidArgument, "mask has 3 bytes, 259 tokens need 33", options='{"allowed": "AAAA"}'),
    decode_refused(InvalidArgument, "33 alternatives of a token", options='{"logprobs": 33}'),
    decode_refused(InvalidArgument, "-1 alternatives of a token", options='{"logprobs": -1}'),
    decode_refused(InvalidArgument, "logit_bias names token 259", sampler=OUTSIDE),
    refusal(NotFound, NO_QUEUE, "alloc", 9, "reserved-kvpage", 1),
    refusal(InvalidArgument, "0 KV pages asked for", "alloc", Q, "reserved-kvpage", 0),
    refusal(QuotaExceeded, "4 KV pages held and 7 more asked for, the limit is 10", "alloc", Q, "reserved-kvpage", 7),
]


@pytest.mark.parametrize("wanted", REFUSED)
def test_a_refused_call_names_the_number_and_changes_nothing(wanted: Refusal) -> None:
    check_refused(wanted)


def test_a_context_that_would_grow_too_long_is_refused() -> None:
    inferlet, _ = prepare()
    for page in (1, 2):
        inferlet.call("copy_kvpage", Q, [0, 3], [page * 4, 3])
    with pytest.raises(InvalidArgument, match="the context has 9 tokens, and 33 steps run 32 more; the model"):
        run(inferlet, steps=33)


def run(inferlet: Inferlet, **changed: Any) -> int:
    """A run of 5 steps behind the first three tokens."""
    given = {"queue": Q, "embed": 2, "sampler": GREEDY, "input": 4, "position": 3, "context": ALL, "pages": ALL}
    arguments = {**given, "steps": 5, "stop": [9], "options": "", **changed}
    future: int = inferlet.call("decode", *arguments.values())
    return future


def fills(inferlet: Inferlet) -> list[int]:
    return inferlet.space.pages.fill[:4]


def slots(inferlet: Inferlet, first: int, last: int) -> list[int]:
    found: list[int] = inferlet.space.pages.positions[first:last].tolist()
    return found


def test_a_run_is_one_command_with_all_that_it_needs() -> None:
    inferlet, handed_on = prepare()
    allowed = base64.b64encode(b"\1" * 33).decode()
    sampler, again = (Sampler(SamplingParams(frequency=0.5), 5) for _ in range(2))
    waiting = inferlet.space.waiting
    future = run(
        inferlet, sampler=sampler, options=f'{{"recent": [7, 8], "window": 6, "allowed": "{allowed}"}}', stop=[9, 1]
    )
    command = handed_on[-1]
    assert isinstance(command, RunCommand)
    assert (command.queue, command.future, command.after, command.steps) == (Q, future, 0, 5)
    assert (command.embed, command.input, command.position, command.stop) == (2, 4, 3, (9, 1))
    assert (command.context, command.own) == (Context(((0, 3),), 3), ((3, 7),))
    assert command.params is sampler.params
    assert struct.unpack("<5d", command.uniform) == tuple(again.draw() for _ in range(5))
    assert (command.recent, command.window, command.allowed) == ((7, 8), 6, b"\1" * 33)
    assert (command.bias, command.alternatives) == (None, -1)
    assert inferlet.space.waiting == waiting + 1


def test_a_greedy_run_makes_no_draws() -> None:
    inferlet, handed_on = prepare()
    run(inferlet)
    assert handed_on[-1].uniform == b""


def test_slots_become_visible_with_the_token_behind_theirs() -> None:
    inferlet, handed_on = prepare()
    future = run(inferlet)
    space = inferlet.space
    assert fills(inferlet) == [3, 0, 0, 0]
    assert space.run_advanced(future, [65], False)
    assert fills(inferlet) == [3, 0, 0, 0], "the first token was sampled, and not run"
    assert space.run_advanced(future, [66, 67], False)
    assert fills(inferlet) == [4, 1, 0, 0]
    assert slots(inferlet, 0, 6) == [0, 1, 2, 3, 4, -2]
    inferlet.call("embed_txt", OTHER_QUEUE, [1], [9], [5, 1])
    inferlet.call("forward", OTHER_QUEUE, ALL, [5, 1], [2, 2], [5, 1])
    assert handed_on[-1].context == Context(((0, 5),), 5)
    assert handed_on[-1].own == ((8, 9),)


def test_nobody_else_gets_reserved_slots_until_the_end() -> None:
    inferlet, handed_on = prepare()
    future = run(inferlet)
    inferlet.call("embed_txt", OTHER_QUEUE, [1], [30], [5, 1])
    inferlet.call("forward", OTHER_QUEUE, ALL, [5, 1], ALL, [])
    assert handed_on[-1].own == ((7, 8),), "slots 3 to 6 are reserved"
    second = run(inferlet, queue=OTHER_QUEUE, embed=1, input=6, steps=3)
    assert handed_on[-1].own == ((8, 10),)
    with pytest.raises(InvalidState, match="slot 4 belongs to a decode run that goes on"):
        inferlet.call("copy_kvpage", Q, [0, 1], [4, 1])
    assert inferlet.space.run_advanced(future, [65, 9], True)
    assert slots(inferlet, 0, 10) == [0, 1, 2, 3, -1, -1, -1, 30, -2, -2]
    assert inferlet.space.run_advanced(second, [65, 66, 67], True)
    assert slots(inferlet, 8, 10) == [3, 4]
    inferlet.call("forward", OTHER_QUEUE, ALL, [5, 1], ALL, [])
    assert handed_on[-1].own == ((4, 5),)
    assert inferlet.space.pages.withheld == 0


def test_a_run_of_one_step_takes_no_slot_and_leaves_its_embed() -> None:
    inferlet, handed_on = prepare()
    future = run(inferlet, steps=1, pages=[])
    assert (handed_on[-1].own, handed_on[-1].context) == ((), Context((), 0))
    inferlet.call("sample", Q, 2, GREEDY)
    assert inferlet.space.run_advanced(future, [65], True)
    assert fills(inferlet) == [3, 0, 0, 0]


def test_what_embeds_hold_is_unknown_from_the_issue_on() -> None:
    inferlet, _ = prepare()
    run(inferlet)
    for embed in (2, 4):
        with pytest.raises(InvalidState, match=f"embed {embed} was never filled, or a decode run used it since"):
            inferlet.call("sample", Q, embed, GREEDY)


def test_others_do_not_write_embeds_of_a_run_but_its_queue_may_go_on() -> None:
    inferlet, _ = prepare()
    future = run(inferlet)
    inferlet.call("embed_txt", OTHER_QUEUE, [1], [30], [5, 1])
    refusals: list[tuple[Any, ...]] = [
        ("embed_txt", OTHER_QUEUE, [1], [5], [4, 1]),
        ("forward", OTHER_QUEUE, ALL, [5, 1], ALL, [2, 1]),
        ("decode", OTHER_QUEUE, 1, GREEDY, 4, 3, ALL, ALL, 3, [], ""),
    ]
    for refused in refusals:
        with pytest.raises(InvalidState, match=f"decode run {future} of queue 1 goes on and uses one of the embeds"):
            inferlet.call(*refused)
    inferlet.call("embed_txt", Q, [1], [8], [4, 1])
    inferlet.call("forward", Q, ALL, [4, 1], ALL, [2, 1])
    assert decode.cancel(inferlet.space, future)
    inferlet.call("embed_txt", OTHER_QUEUE, [1], [5], [4, 1])


@pytest.mark.parametrize(("embed", "input"), [(1, 4), (4, 1)])
def test_the_order_of_its_embeds_does_not_matter(embed: int, input: int) -> None:
    inferlet, _ = prepare()
    inferlet.call("copy_emb", Q, [2, 1], [embed, 1])
    run(inferlet, embed=embed, input=input)
    for written in (embed, input):
        with pytest.raises(InvalidState, match="goes on and uses one of the embeds"):
            inferlet.call("embed_txt", OTHER_QUEUE, [1], [9], [written, 1])
    inferlet.call("embed_txt", OTHER_QUEUE, [1], [9], [3, 1])


def test_what_a_run_sees_is_not_emptied_or_overwritten() -> None:
    inferlet, _ = prepare()
    future = run(inferlet)
    inferlet.space.run_advanced(future, [65, 66], False)
    for refused in (("trim_kvpage", OTHER_QUEUE, [0, 1], 3), ("copy_kvpage", OTHER_QUEUE, [0, 1], [1, 1])):
        with pytest.raises(InvalidState, match="decode run goes on and sees tokens of these pages"):
            inferlet.call(*refused)
    inferlet.call("trim_kvpage", Q, [0, 1], 4)  # nothing is lost
    assert decode.cancel(inferlet.space, future)
    inferlet.call("trim_kvpage", Q, [0, 1], 3)
    assert fills(inferlet) == [3, 0, 0, 0]


def test_a_page_is_seen_as_long_as_one_of_many_runs_goes_on_and_nobody_goes_through_them() -> None:
    """A program with 256 runs held up all others of its host for 0.15 s, each time that it emptied a page."""

    def work(runs: int) -> int:
        inferlet, _ = prepare()
        futures = [run(inferlet, steps=1) for _ in range(runs)]
        lines = lines_of(lambda: inferlet.call("trim_kvpage", Q, [0, 1], 3))
        for future in futures:
            with pytest.raises(InvalidState, match="goes on and sees tokens of these pages"):
                inferlet.call("trim_kvpage", Q, [0, 1], 2)
            assert decode.cancel(inferlet.space, future)
        inferlet.call("trim_kvpage", Q, [0, 1], 2)
        return lines

    assert work(2) == work(9)


@pytest.mark.parametrize("advance", [[], [65], [65, 66, 67]])
def test_a_cancelled_run_keeps_what_was_delivered(advance: Sequence[int]) -> None:
    inferlet, handed_on = prepare()
    future = run(inferlet)
    inferlet.space.run_advanced(future, advance, False)
    assert decode.cancel(inferlet.space, future)
    assert handed_on[-1] == EndRun(7, Q, future)
    assert sum(fills(inferlet)) == 3 + max(len(advance) - 1, 0)
    assert inferlet.space.pages.withheld == 0
    assert not inferlet.space.run_advanced(future, [68], False), "what comes later is dropped"
    assert not decode.cancel(inferlet.space, future)
    assert handed_on[-1] == EndRun(7, Q, future)
    assert sum(fills(inferlet)) == 3 + max(len(advance) - 1, 0)


def test_a_run_that_fails_is_over() -> None:
    inferlet, _ = prepare()
    future = run(inferlet)
    inferlet.space.run_advanced(future, [65, 66], False)
    inferlet.space.answered(future, Cancelled("the worker could not run it"))
    assert not inferlet.space.runs
    assert (fills(inferlet), inferlet.space.pages.withheld) == ([4, 0, 0, 0], 0)


@pytest.mark.parametrize(("tokens", "cancelled"), [(3, False), (2, True), (0, True)])
def test_draws_that_were_not_needed_come_next(tokens: int, cancelled: bool) -> None:
    inferlet, _ = prepare()
    sampler, again = (Sampler(SamplingParams(), 5) for _ in range(2))
    future = run(inferlet, sampler=sampler)
    inferlet.space.run_advanced(future, [65] * tokens, not cancelled)
    if cancelled:
        decode.cancel(inferlet.space, future)
    for _ in range(tokens):
        again.draw()
    assert [sampler.draw() for _ in range(8)] == [again.draw() for _ in range(8)]


def test_reserved_pages_are_held_at_once_and_only_runs_write_there() -> None:
    inferlet, handed_on = prepare()
    before = inferlet.space.usage().pages
    first = inferlet.call("alloc", Q, "reserved-kvpage", 3)
    assert not isinstance(handed_on[-1], RunCommand)
    assert inferlet.space.usage().pages == before + 3
    inferlet.call("embed_txt", Q, [1], [30], [5, 1])
    with pytest.raises(InvalidState, match="1 tokens need 1 free slots, the output pages have 0"):
        inferlet.call("forward", Q, ALL, [5, 1], [first, 3], [])
    with pytest.raises(InvalidState, match="a reserved page without memory"):
        inferlet.call("copy_kvpage", Q, [0, 1], [first * 4, 1])
    run(inferlet, steps=7, pages=[0, 1, first, 3], context=[0, 1, first, 3])
    assert handed_on[-1].own == ((3, 4), (first * 4, first * 4 + 5))


def test_reserved_pages_that_a_run_has_reached_have_memory() -> None:
    inferlet, handed_on = prepare()
    first = inferlet.call("alloc", Q, "reserved-kvpage", 3)
    pages = [0, 1, first, 3]
    future = run(inferlet, steps=12, pages=pages, context=pages)
    with pytest.raises(InvalidState, match="needs 4 free slots, its pages have 0"):
        run(inferlet, queue=OTHER_QUEUE, embed=1, input=6, pages=[first, 3])  # the last page has one run at most
    inferlet.space.run_advanced(future, [65] * 4, True)  # slots 3, and two of the first reserved page
    assert slots(inferlet, first * 4, first * 4 + 12) == [4, 5, -1, -1] + [-3] * 8
    inferlet.call("embed_txt", Q, [1], [30], [5, 1])
    inferlet.call("forward", Q, ALL, [5, 1], [first, 3], [])
    assert handed_on[-1].own == ((first * 4 + 2, first * 4 + 3),)
    run(inferlet, embed=1, steps=5, pages=[first, 3], position=40 - 5)
    assert handed_on[-1].own == ((first * 4 + 3, first * 4 + 7),)


def test_pages_of_a_run_may_be_given_back_while_it_goes_on() -> None:
    inferlet, _ = prepare()
    first = inferlet.call("alloc", Q, "reserved-kvpage", 1)
    future = run(inferlet, steps=9, pages=[0, 1, first, 1, 2, 1], context=[0, 1])
    inferlet.space.run_advanced(future, [65, 66, 67], False)
    inferlet.call("dealloc", Q, "kvpage", [first, 1])
    inferlet.space.run_advanced(future, [65, 66, 67, 68], False)
    assert fills(inferlet) == [4, 0, 1, 0]
    inferlet.space.run_advanced(future, [9], True)
    assert (fills(inferlet), inferlet.space.pages.withheld) == ([4, 0, 2, 0], 0)


def test_a_run_waits_for_what_it_reads_and_for_trimmed_slots() -> None:
    inferlet, handed_on = prepare()
    forward = next(one.seq for one in handed_on if type(one).__name__ == "ForwardCommand")
    run(inferlet, queue=OTHER_QUEUE, embed=1, input=6)
    assert handed_on[-1].after == forward
    inferlet, handed_on = prepare()
    inferlet.call("trim_kvpage", Q, [0, 1], 2)
    run(inferlet, position=2)
    assert handed_on[-1].after == inferlet.space.seq - 1


def test_nothing_waits_for_a_run_that_reads_what_it_read() -> None:
    inferlet, handed_on = prepare()
    inferlet.space.progressed(inferlet.space.seq + 1, 5)
    future = run(inferlet)
    inferlet.space.run_advanced(future, [65, 66], False)
    inferlet.call("copy_kvpage", OTHER_QUEUE, [0, 4], [8, 4])
    assert handed_on[-1].after == 0


def test_a_long_run_is_as_long_as_is_said() -> None:
    assert MOST_STEPS == 1024
