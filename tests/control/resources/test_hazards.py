"""Which commands must be dispatched before which."""

from __future__ import annotations

from pie_control.resources.hazards import Hazards, make_stamp
from pie_control.resources.tables.embeds import EmbedTable
from pie_control.resources.tables.pages import PageTable

A, B, C = 1, 2, 3  # queues
ONE = ((0, 1),)
OTHER = ((1, 2),)


class State:
    """Four pages and four embeds, allocated by command 1 of queue A."""

    def __init__(self) -> None:
        self.pages, self.embeds = PageTable(4), EmbedTable()
        self.hazards = Hazards(self.pages, self.embeds)
        self.pages.allocate(4, make_stamp(1, A))
        self.embeds.allocate(4, make_stamp(1, A))

    def write(self, seq: int, queue: int) -> None:
        self.hazards.note_writes(ONE, make_stamp(seq, queue))

    def read(self, seq: int, queue: int) -> None:
        self.hazards.note_reads(ONE, make_stamp(seq, queue), False)


def test_within_a_queue_nothing_has_to_wait() -> None:
    state = State()
    state.write(2, A)
    state.read(3, A)
    assert state.hazards.of_reading(A, ONE) == state.hazards.of_writing(A, ONE) == 0
    assert state.hazards.of_pages(A, ONE) == 0


def test_a_reader_waits_for_the_writer_in_another_queue() -> None:
    state = State()
    state.write(2, A)
    assert state.hazards.of_reading(B, ONE) == 2
    assert state.hazards.of_reading(B, OTHER) == 1, "it was allocated by command 1"


def test_a_writer_waits_for_readers_and_writers_of_other_queues() -> None:
    state = State()
    state.write(2, B)
    state.read(3, A)
    assert state.hazards.of_writing(A, ONE) == 2
    assert state.hazards.of_writing(B, ONE) == 3
    assert state.hazards.of_writing(C, ONE) == 3


def test_readers_of_several_queues_hold_up_each_of_them() -> None:
    state = State()
    state.read(2, A)
    state.read(3, B)
    assert state.hazards.of_writing(B, ONE) == 3, "queue A reads, too"
    state.read(4, B)
    assert state.hazards.of_writing(B, ONE) == 4


def test_what_was_dispatched_holds_nobody_up() -> None:
    state = State()
    state.write(2, A)
    state.read(5, A)
    state.hazards.dispatched(3)
    assert state.hazards.of_reading(B, ONE) == 0
    assert state.hazards.of_writing(B, ONE) == 5
    assert state.hazards.of_pages(B, ONE) == 0
    state.hazards.dispatched(6)
    assert state.hazards.of_writing(B, ONE) == 0


def test_pages_that_another_queue_writes_are_waited_for() -> None:
    state = State()
    state.pages.append(((0, 5),), range(5), make_stamp(7, A))
    for ranges in (((0, 2),), ((1, 2),), ((3, 4), (0, 1))):
        state.pages.context(ranges, 9, 9)
        assert state.hazards.of_pages(B, ranges) == 7
        assert state.hazards.of_pages(A, ranges) == 0
    assert state.hazards.of_pages(B, ()) == 0


def test_a_page_is_rewritten_after_all_that_may_use_what_a_trim_emptied() -> None:
    state = State()
    state.hazards.trimmed([1, 2], 8)
    assert state.hazards.of_rewriting([(0, 4)]) == 0
    assert state.hazards.of_rewriting([(3, 5)]) == 8
    assert state.hazards.of_emptied([0, 2]) == 8
    state.hazards.dispatched(8)
    assert state.hazards.of_rewriting([(3, 5)]) == 8
    state.hazards.dispatched(9)
    assert state.hazards.of_rewriting([(3, 5)]) == 0


def test_a_page_that_was_given_back_is_not_remembered() -> None:
    state = State()
    state.hazards.trimmed([1, 2], 8)
    state.pages.disown([(1, 2)])
    state.hazards.forget_pages()
    assert state.hazards.rewrites == {2: 8}
