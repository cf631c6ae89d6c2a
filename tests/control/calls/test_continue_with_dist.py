"""continue_with_dist gives the command that a forward gives with all its arguments, whatever came between."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_control.calls.forward import forward
from pie_control.calls.fused import continue_with_dist
from pie_control.calls.fused.last_step import MOST_NUMBERS
from pie_control.calls.fused.step import DistStep
from pie_control.errors import CallError, InvalidArgument, InvalidState, NotFound
from tests.helpers.refusals import NO_QUEUE, Q, prepare, state
from tests.helpers.scheduling import GOES_ON, Inferlet, name_token

CONTEXT, OUTPUT = [0, 3], 5
STEP = "forward_with_dist"
Deed = tuple[str, tuple[Any, ...]]


class Twins:
    """Two inferlets to which the same happens; one goes on, the other says everything."""

    def __init__(self) -> None:
        self.both = [prepare(queues=1), prepare(queues=1)]
        self.position = 2

    def step(self, token: int, pages: list[int] = CONTEXT) -> None:
        self.position += 1
        for inferlet, _ in self.both:
            inferlet.call(STEP, Q, [token], [self.position], [4, 1], CONTEXT, pages, OUTPUT, 7, 0.5)

    def go_on(self, token: int, pages: list[int] = CONTEXT) -> None:
        """Checks that both are in the same state afterwards."""
        goes_on, says_all = (inferlet for inferlet, _ in self.both)
        arguments = Q, [token], [self.position + 1], [4, 1], CONTEXT, pages, OUTPUT, 7, 0.5
        refused = [
            refusal_of(lambda: goes_on.call(GOES_ON, Q, token)),
            refusal_of(lambda: says_all.call(STEP, *arguments)),
        ]
        assert refused[0] == refused[1]
        self.position += refused[0] is None
        if refused[0] is None:
            one, other = (handed_on[-1] for _, handed_on in self.both)
            assert msgspec.msgpack.encode(one) == msgspec.msgpack.encode(other)
        assert len(self.both[0][1]) == len(self.both[1][1])
        assert state(goes_on) == state(says_all)

    def do(self, deed: Deed) -> None:
        name, arguments = deed
        told = [refusal_of(lambda: getattr(self, name)(one, *arguments)) for one, _ in self.both]  # noqa: B023
        assert told[0] == told[1]

    def call(self, inferlet: Inferlet, *arguments: Any) -> None:
        inferlet.call(*arguments)

    def progress(self, inferlet: Inferlet) -> None:
        inferlet.space.progressed(inferlet.space.seq + 1, inferlet.space.waiting)

    def new_queue(self, inferlet: Inferlet) -> None:
        inferlet.create_queue()


def refusal_of(call: Any) -> tuple[type[CallError], str] | None:
    try:
        call()
    except CallError as error:
        return type(error), str(error)
    return None


DEEDS: list[Deed] = [
    ("progress", ()),
    ("new_queue", ()),
    *(
        ("call", one)
        for one in [
            ("trim_kvpage", Q, [0, 3], 2),
            ("trim_kvpage", Q, [0, 3], 5),
            ("mask_kvpage", Q, [0, 1], [1, 1]),
            ("mask_kvpage", Q, [0, 1], []),
            ("copy_kvpage", Q, [0, 1], [4, 1]),
            ("dealloc", Q, "kvpage", [1, 1]),
            ("alloc", Q, "kvpage", 1),
            ("dealloc", Q, "emb", [4, 1]),
            ("copy_emb", Q, [0, 1], [5, 1]),
            ("export_kvpage", Q, "name", [0, 1], ""),
            (STEP, Q, [9, 9], [7, 8], [6, 2], [0, 2], [0, 2], 3, 1, 1.0),
        ]
    ),
]


@given(st.lists(st.one_of(st.integers(0, 300), st.sampled_from(DEEDS)), max_size=25))
def test_it_is_the_step_with_all_arguments_whatever_comes_between(what: list[int | Deed]) -> None:
    twins = Twins()
    twins.step(65)
    for one in what:
        if isinstance(one, int):
            twins.go_on(one)
        else:
            twins.do(one)
            if one[1][:1] == (STEP,):
                break  # the next one would go on from this


@pytest.mark.parametrize("pages", [[2, 1], [1, 1, 2, 1], []])
def test_output_pages_may_be_others_than_those_that_are_seen(pages: list[int]) -> None:
    twins = Twins()
    twins.step(65, pages)
    for token in range(6):
        twins.go_on(token, pages)


def test_most_steps_look_at_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    inferlet, handed_on = prepare(queues=1)
    inferlet.call(STEP, Q, [65], [3], [4, 1], CONTEXT, CONTEXT, OUTPUT, 7, 0.5)
    looked: list[int] = []

    def look(*arguments: Any) -> None:
        looked.append(1)
        forward.read_dist(*arguments)

    monkeypatch.setattr(continue_with_dist, "forward", SimpleNamespace(read_dist=look))
    for token in range(8):  # two pages of four
        inferlet.call(GOES_ON, Q, token)
    assert len(looked) == 2, "one for each page"
    assert [one.tokens[0] for one in handed_on if isinstance(one, DistStep)] == [65, *range(8)]


def test_the_next_position_may_uncover_a_token_of_the_context() -> None:
    context, commands = [3, 1, 0, 2], []
    for goes_on in (True, False):
        inferlet, handed_on = prepare(queues=1)
        inferlet.call("embed_txt", Q, [69], [4], [3, 1])
        inferlet.call("forward", Q, [0, 1], [3, 1], [3, 1], [])  # a token at position 4, which 5 sees and 4 does not
        for position in (3, 4, 5):
            if goes_on and position > 3:
                inferlet.call(GOES_ON, Q, 65)
            else:
                inferlet.call(STEP, Q, [65], [position], [4, 1], context, context[2:], OUTPUT, 7, 0.5)
        commands.append(msgspec.msgpack.encode(handed_on[-1]))
    assert commands[0] == commands[1]


def test_a_token_may_be_a_reference() -> None:
    inferlet, handed_on = prepare(queues=1)
    inferlet.call(STEP, Q, [65], [3], [4, 1], CONTEXT, CONTEXT, OUTPUT, 7, 0.5)
    inferlet.call(GOES_ON, Q, name_token(1))
    assert (list(handed_on[-1].tokens), list(handed_on[-1].references)) == ([0], [(0, 1)])


def test_a_step_of_several_tokens_leaves_its_first_embed_to_the_next_one() -> None:
    inferlet, handed_on = prepare(queues=1)
    inferlet.call(STEP, Q, [65, 66], [3, 4], [6, 2], CONTEXT, CONTEXT, OUTPUT, 7, 0.5)
    inferlet.call(GOES_ON, Q, 67)
    assert (handed_on[-1].inputs, list(handed_on[-1].positions)) == (((6, 7),), [5])


def test_there_must_be_a_step_before_with_short_lists() -> None:
    inferlet, _ = prepare(queues=1)
    with pytest.raises(NotFound, match=NO_QUEUE):
        inferlet.call(GOES_ON, 9, 1)
    with pytest.raises(
        InvalidState, match=f"begin with a `forward` of tokens, .* lists of pages of at most {MOST_NUMBERS}"
    ):
        inferlet.call(GOES_ON, Q, 1)
    inferlet.call(STEP, Q, [65], [3], [4, 1], CONTEXT, CONTEXT, OUTPUT, 7, 0.5)
    with pytest.raises(InvalidArgument, match="token 300 is outside"):
        inferlet.call(GOES_ON, Q, 300)
    many = [0, 1] + [1, 0] * (MOST_NUMBERS // 2)
    inferlet.call(STEP, Q, [66], [4], [4, 1], many, [1, 1], OUTPUT, 7, 0.5)
    with pytest.raises(InvalidState, match="no step to go on from"):
        inferlet.call(GOES_ON, Q, 1)


def test_what_a_queue_remembers_ends_with_it() -> None:
    inferlet, _ = prepare(queues=1)
    inferlet.call(STEP, Q, [65], [3], [4, 1], CONTEXT, CONTEXT, OUTPUT, 7, 0.5)
    inferlet.destroy_queue(Q)
    assert not inferlet.space.last_steps
    with pytest.raises(NotFound):
        inferlet.call(GOES_ON, Q, 1)
