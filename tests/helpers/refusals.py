"""An address space in a known state, and calls that it must refuse without any effect."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from pie_control.calls.sampler import Sampler, SamplingParams
from pie_control.errors import CallError
from pie_control.resources.quotas import Quota

from .scheduling import Inferlet, describe

Q = 1
OTHER_QUEUE = 2
GREEDY = Sampler(SamplingParams(temperature=0), 0)
HOLDS_AN_INPUT = "embed 3 holds an input token, which says nothing of the next one; run forward first"
NO_QUEUE = "queue 9 does not exist; create-queue gives queues"


class Refusal(NamedTuple):
    """A call with arguments that are wrong; `message` is a part of what it is told."""

    error: type[CallError]
    message: str
    call: str
    arguments: tuple[Any, ...]


def refusal(error: type[CallError], message: str, call: str, *arguments: Any) -> Any:
    """A test case."""
    return pytest.param(Refusal(error, message, call, arguments), id=f"{call}: {message}")


def prepare(queues: int = 2) -> tuple[Inferlet, list[Any]]:
    """An inferlet, and what it hands on: queues 1 and 2, or fewer; pages 0 to 3, the first with 3 tokens; embeds 0 to
    7, of which 0 to 3 are filled, 0 to 2 with outputs; future 1 is a sample of queue 1. Pages have 4 slots, the
    vocabulary 259 tokens."""
    model = describe(num_pages=32, num_embeds=100, max_batch_tokens=16, max_context=40, max_batch_rows=6)
    handed_on: list[Any] = []
    inferlet = Inferlet(7, model, Quota(pages=10, embeds=40, queues=2, commands=20), handed_on.append)
    assert [inferlet.create_queue() for _ in range(queues)] == [Q, OTHER_QUEUE][:queues]
    inferlet.call("alloc", Q, "kvpage", 4)
    inferlet.call("alloc", Q, "emb", 8)
    inferlet.call("embed_txt", Q, [65, 66, 67, 68], [0, 1, 2, 3], [0, 4])
    inferlet.call("forward", Q, [0, 1], [0, 3], [0, 1], [0, 3])
    inferlet.call("sample", Q, 0, GREEDY)
    return inferlet, handed_on


def check_refused(wanted: Refusal) -> None:
    """The right error, a message that names the number, and no effect."""
    inferlet, handed_on = prepare()
    samplers = [argument for argument in wanted.arguments if isinstance(argument, Sampler)]
    before = state(inferlet), len(handed_on), [_next_draw(sampler) for sampler in samplers]
    with pytest.raises(wanted.error) as caught:
        inferlet.call(wanted.call, *wanted.arguments)
    assert type(caught.value) is wanted.error
    assert wanted.message in str(caught.value)
    assert (state(inferlet), len(handed_on), [_next_draw(sampler) for sampler in samplers]) == before


def state(inferlet: Inferlet) -> tuple[object, ...]:
    space = inferlet.space
    pages, embeds = space.pages, space.embeds
    return (
        space.usage(),
        space.seq,
        dict(space.hazards.rewrites),
        (list(pages.fill), list(pages.top), list(pages.writes), pages.positions.tolist()),
        (list(embeds.positions), list(embeds.writes), list(embeds.reads)),
        vars(space)["_freed"].copy(),
        set(vars(space)["_samples"]),
        set(vars(space)["_watchers"]),
    )


def _next_draw(sampler: Sampler) -> float:
    drawn = sampler.draw_many(1)
    (number,) = drawn.numbers
    drawn.use(0)
    return number
