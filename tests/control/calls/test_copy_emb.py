from __future__ import annotations

import pytest

from pie_control.calls.allocate import copy_emb
from pie_control.calls.values import Token
from pie_control.errors import InvalidArgument, InvalidState, NotFound
from pie_inference.protocol import CopyEmb, Forward, Sample
from tests.helpers.refusals import NO_QUEUE, OTHER_QUEUE, Q, Refusal, check_refused, prepare, refusal
from tests.helpers.scheduling import World, by_kind, greedy

REFUSED = [
    refusal(NotFound, NO_QUEUE, "copy_emb", 9, [0, 1], [4, 1]),
    refusal(InvalidState, "embed 4 was never filled", "copy_emb", Q, [3, 2], [0, 2]),
    refusal(NotFound, "embed 8 is not allocated", "copy_emb", Q, [8, 1], [0, 1]),
    refusal(NotFound, "embed 8 is not allocated", "copy_emb", Q, [0, 1], [8, 1]),
    refusal(
        InvalidArgument, "2 source embeds and 1 target embeds; the numbers must be equal", "copy_emb", Q, [0, 2], [4, 1]
    ),
    refusal(InvalidArgument, "source embed 0 is named twice", "copy_emb", Q, [0, 1, 0, 1], [4, 2]),
    refusal(InvalidArgument, "target embed 4 is named twice", "copy_emb", Q, [0, 2], [4, 1, 4, 1]),
    refusal(InvalidArgument, "embed 0 is named twice", "copy_emb", Q, [0, 2**20, 0, 1], [4, 1]),
    refusal(
        InvalidArgument,
        "5000 embeds are more than 4096: copy them in several calls",
        "copy_emb",
        Q,
        [0, 5000],
        [0, 5000],
    ),
]


@pytest.mark.parametrize("wanted", REFUSED)
def test_a_refused_call_names_the_number_and_changes_nothing(wanted: Refusal) -> None:
    check_refused(wanted)


def test_embeds_are_paired_in_the_order_of_the_lists_and_all_are_read_first() -> None:
    inferlet, handed_on = prepare()
    embeds = inferlet.space.embeds
    before = [(embeds.positions[n], embeds.is_output[n]) for n in range(4)]
    inferlet.call("copy_emb", Q, [3, 1, 0, 2], [0, 3])
    assert [(embeds.positions[n], embeds.is_output[n]) for n in range(3)] == [before[3], before[0], before[1]]
    assert handed_on[-1].after == 0


def test_other_queues_are_waited_for() -> None:
    inferlet, handed_on = prepare()
    inferlet.call("embed_txt", Q, [1, 2], [0, 1], [4, 2])
    filled = inferlet.space.seq
    inferlet.call("copy_emb", OTHER_QUEUE, [4, 1], [6, 1])
    assert handed_on[-1].after == filled
    inferlet.call("embed_txt", Q, [1], [0], [4, 1])
    assert handed_on[-1].after == inferlet.space.seq - 1, "what a copy reads is not overwritten before"


def test_empty_lists_do_nothing() -> None:
    inferlet, handed_on = prepare()
    before = len(handed_on), inferlet.space.seq
    inferlet.call("copy_emb", Q, [], [])
    assert (len(handed_on), inferlet.space.seq) == before


def test_an_output_is_handed_on_and_sampled_in_the_wave_of_its_forward() -> None:
    world = World()
    inferlet = world.open(8, 8)
    inferlet.embed(0, 3)
    inferlet.forward(0, 3, 4)
    inferlet.call("copy_emb", 1, [inferlet.embeds + 4, 1], [inferlet.embeds + 5, 1])
    tokens = [inferlet.call("sample", 1, inferlet.embeds + at, greedy()) for at in (4, 5)]
    [wave] = world.drain()
    assert list(by_kind(wave))[-3:] == [Forward, CopyEmb, Sample]
    assert isinstance(inferlet.answers[tokens[0]], Token)
    assert inferlet.answers[tokens[0]] == inferlet.answers[tokens[1]]


def test_a_copy_of_a_copy_waits_for_the_next_wave_and_others_go_together() -> None:
    world = World()
    inferlet = world.open(8, 8)
    inferlet.embed(0, 2)
    world.drain()
    first = inferlet.embeds
    for source, target in ((0, 2), (0, 3), (2, 4)):
        inferlet.call("copy_emb", 1, [first + source, 1], [first + target, 1])
    sources = [by_kind(wave)[CopyEmb].indptr.tolist() for wave in world.drain()]
    assert sources == [[0, 1, 2], [0, 1]]


def test_a_wave_copies_a_bounded_number_of_embeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_emb, "MOST_EMBEDS", 10)
    world = World()
    inferlets = [world.open(8, 8) for _ in range(4)]
    for inferlet in inferlets:
        inferlet.embed(0, 4)
    world.drain()
    for inferlet in inferlets:
        inferlet.call("copy_emb", 1, [inferlet.embeds, 4], [inferlet.embeds + 4, 4])
    assert [len(by_kind(wave)[CopyEmb].source) for wave in world.drain()] == [8, 8]
