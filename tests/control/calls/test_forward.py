from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest

from pie_control.errors import InvalidArgument, InvalidState, NotFound
from tests.helpers.refusals import NO_QUEUE, OTHER_QUEUE, Q, Refusal, check_refused, prepare, refusal
from tests.helpers.scheduling import World

REFUSED = [
    refusal(NotFound, NO_QUEUE, "forward", 9, [0, 1], [3, 1], [0, 1], []),
    refusal(InvalidArgument, "forward needs at least one input embed", "forward", Q, [0, 1], [], [0, 2], []),
    refusal(InvalidState, "embed 4 was never filled", "forward", Q, [0, 1], [3, 2], [0, 2], []),
    refusal(NotFound, "embed 8 is not allocated", "forward", Q, [0, 1], [8, 1], [0, 2], []),
    refusal(InvalidArgument, "embed 3 is named twice", "forward", Q, [0, 1], [3, 1, 3, 1], [0, 2], []),
    refusal(NotFound, "KV page 4 is not allocated", "forward", Q, [3, 2], [3, 1], [0, 1], []),
    refusal(NotFound, "KV page 4 is not allocated", "forward", Q, [0, 1], [3, 1], [4, 1], []),
    refusal(InvalidArgument, "context page 0 is named twice", "forward", Q, [0, 1, 0, 1], [3, 1], [0, 1], []),
    refusal(InvalidArgument, "output page 0 is named twice", "forward", Q, [0, 1], [3, 1], [0, 1, 0, 1], []),
    refusal(
        InvalidState,
        "2 tokens need 2 free slots, the output pages have 1; allocate pages and name them behind the others, or trim",
        "forward",
        Q,
        [0, 1],
        [0, 2],
        [0, 1],
        [],
    ),
    refusal(InvalidArgument, "2 output embeds for 1 inputs", "forward", Q, [0, 1], [3, 1], [0, 1], [4, 2]),
    refusal(NotFound, "embed 8 is not allocated", "forward", Q, [0, 1], [2, 2], [0, 2], [7, 2]),
    refusal(InvalidArgument, "output embed 4 is named twice", "forward", Q, [], [2, 2], [1, 1], [4, 1, 4, 1]),
]


@pytest.mark.parametrize("wanted", REFUSED)
def test_a_refused_call_names_the_number_and_changes_nothing(wanted: Refusal) -> None:
    check_refused(wanted)


def test_a_context_longer_than_the_model_allows_is_refused() -> None:
    inferlet, _ = prepare()
    inferlet.call("dealloc", Q, "kvpage", [0, 4])
    inferlet.space.progressed(inferlet.space.seq + 1, inferlet.space.waiting)  # nothing waits: they are free
    pages = inferlet.call("alloc", Q, "kvpage", 10)
    embeds = inferlet.call("alloc", Q, "emb", 32)
    inferlet.call("embed_txt", Q, [1] * 32, list(range(32)), [embeds, 32])
    inferlet.call("forward", Q, [pages, 10], [embeds, 32], [pages, 10], [])
    inferlet.call("embed_txt", Q, [1] * 9, [39] * 9, [embeds, 9])
    with pytest.raises(InvalidArgument, match="32 context tokens and 9 inputs, the model's limit is 40"):
        inferlet.call("forward", Q, [pages, 10], [embeds, 9], [], [])
    inferlet.call("forward", Q, [pages, 10], [embeds, 8], [], [])


def test_more_inputs_than_a_batch_need_output_pages() -> None:
    inferlet, _ = prepare()
    embeds = inferlet.call("alloc", Q, "emb", 17)
    inferlet.call("embed_txt", Q, [1] * 17, list(range(17)), [embeds, 17])
    with pytest.raises(InvalidArgument, match="17 inputs without output pages; at most 16"):
        inferlet.call("forward", Q, [], [embeds, 17], [], [])
    inferlet.call("forward", Q, [], [embeds, 16], [], [])


def test_more_inputs_than_a_batch_keep_what_later_tokens_read() -> None:
    inferlet, _ = prepare()
    embeds = inferlet.call("alloc", Q, "emb", 20)
    inferlet.call("alloc", Q, "kvpage", 6)
    inferlet.call("embed_txt", Q, [1] * 17, list(range(17)), [embeds, 17])
    with pytest.raises(InvalidArgument, match="inputs of later tokens; at most 16 inputs can run so, not 17"):
        inferlet.call("forward", Q, [], [embeds, 17], [4, 6], [embeds + 2, 17])
    inferlet.call("forward", Q, [], [embeds, 16], [4, 6], [embeds + 1, 16])
    inferlet.call("trim_kvpage", Q, [4, 6], 0)
    inferlet.call("forward", Q, [], [embeds, 17], [4, 6], [embeds, 17])


def test_outputs_are_those_of_the_last_inputs_and_at_their_positions() -> None:
    inferlet, handed_on = prepare()
    inferlet.call("forward", Q, [], [0, 4], [1, 1], [7, 1, 5, 1])
    command = handed_on[-1]
    assert (command.size, command.own, command.outputs) == (4, ((4, 8),), ((7, 8), (5, 6)))
    assert inferlet.space.embeds.positions[4:8] == [-1, 3, -1, 2]


def test_what_another_queue_writes_is_waited_for() -> None:
    inferlet, handed_on = prepare()
    embed, forward, sample = (command.seq for command in handed_on[-3:])
    inferlet.call("forward", OTHER_QUEUE, [], [3, 1], [1, 1], [])
    assert handed_on[-1].after == embed
    inferlet.call("forward", OTHER_QUEUE, [0, 1], [3, 1], [1, 1], [])
    assert handed_on[-1].after == forward
    inferlet.call("forward", OTHER_QUEUE, [0, 1], [3, 1], [1, 1], [0, 1])
    assert handed_on[-1].after == sample


ORDERS: dict[str, Callable[[int], list[int]]] = {
    "each to its own input": lambda n: list(range(n)),
    "to the input before": lambda n: [0, *range(n - 1)],
    "to the input behind": lambda n: [*range(1, n), 0],
    "to the inputs behind, the last outputs alone": lambda n: list(range(n // 2, n))[::-1],
    "backwards": lambda n: list(range(n))[::-1],
    "the last two swapped": lambda n: [n - 1, n - 2],
    "elsewhere": lambda n: list(range(n, 2 * n)),
}
"""Where the outputs of the last inputs go; inputs are 0 to n - 1."""
SPLIT = ("each to its own input", "to the input before", "elsewhere")
"""No later part reads what an earlier part writes; the others run as a whole or not at all."""


@pytest.mark.parametrize("order", ORDERS)
def test_outputs_are_the_same_however_a_forward_is_split(order: str) -> None:
    count, told = 20, {}
    outputs = list(dict.fromkeys(ORDERS[order](count)))
    for most in range(1, 2 * count):
        world = World(max_batch_tokens=most, max_context=100)
        inferlet = world.open(6, 2 * count)
        inferlet.embed(0, count, tokens=list(range(count)))
        pages, targets = [inferlet.pages, 6], [n for embed in outputs for n in (inferlet.embeds + embed, 1)]
        refused = most < count and order not in SPLIT
        with pytest.raises(InvalidArgument, match="name other output") if refused else nullcontext():
            inferlet.call("forward", 1, [], [inferlet.embeds, count], pages, targets)
        if refused:
            continue
        inferlet.forward(outputs[0], 1, 2 * count - 1)
        futures = [inferlet.sample(embed) for embed in (*outputs, 2 * count - 1)]
        world.drain()
        told[most] = [inferlet.token(future) for future in futures]
    assert all(tokens == told[count] for tokens in told.values())
