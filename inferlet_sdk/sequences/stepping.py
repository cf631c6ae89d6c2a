"""Steps of a sequence that run a token or a few, and read the output, in one call.

This is the hot path of programs that look at each token, so it makes raw host calls.
"""

from __future__ import annotations

from inferlet_sdk import bindings
from inferlet_sdk.errors import InvalidArgument, from_host
from inferlet_sdk.event_loop import loop_with_others
from inferlet_sdk.futures import HostFuture
from inferlet_sdk.sequences.last_step import LastStep
from inferlet_sdk.sequences.queues import KEPT_INPUTS, Queue
from inferlet_sdk.sequences.sequence import TokenSequence
from inferlet_sdk.traits.arguments import LARGEST_U32, number, room, whole
from inferlet_sdk.traits.output_text import Dist, await_dist, dist_of

_NO_MASK: list[int] = []


def try_next_dist(sequence: TokenSequence, k: int, temperature: float) -> Dist | None:
    """The distribution after the last token, if this goes on from the last step by one token, and nothing else goes on
    in the program. One call with two numbers."""
    step, start, queue, pages = sequence.last_step, sequence.computed, sequence.last_queue, sequence.pages
    if (
        step is None
        or queue is None
        or queue.last_step is not step
        or sequence.has_own_queue  # the program may use it, too
        or step.stop != start
        or len(sequence.tokens) != start + 1
        or start >= pages.capacity
        or start + sequence.offset >= sequence.info.max_context
        or step.context is not pages.context
        or step.output is not pages.output
        or step.embed is not sequence.output.own
        or step.k != k
        or step.temperature != temperature
        or (queue.users and not sequence.uses)
        or loop_with_others() is not None
    ):
        return None
    try:
        dist = dist_of(bindings.fused.continue_with_dist(queue.number, sequence.tokens[start]))
    except bindings.HostError as error:
        sequence.last_step, sequence.computed = None, start + 1
        sequence.rewind(start)  # nobody knows whether the token has run
        raise from_host(error) from None
    sequence.computed = sequence.output_of = step.stop = start + 1
    return dist


async def next_dist(sequence: TokenSequence, k: int, temperature: float) -> Dist:
    """The distribution after the last token. A few pending tokens run in the same call."""
    if (dist := try_next_dist(sequence, k, temperature)) is not None:
        return dist
    with sequence:
        return await ask_dist(sequence, k, temperature)


def ask_dist(sequence: TokenSequence, k: int, temperature: float) -> HostFuture[Dist]:
    """The distribution after the last token of a sequence that works."""
    if type(k) is not int or not 0 <= k <= LARGEST_U32:
        k = whole(k, "k")
    if type(temperature) is not float:
        temperature = number(temperature, "temperature")
    if not (k or temperature):
        raise InvalidArgument("temperature is 0; it must be above 0: sample with a Sampler of temperature 0 instead")
    try:
        return HostFuture(_issue_dist(sequence, k, temperature), await_dist)
    except bindings.HostError as error:
        raise from_host(error) from None


def _issue_dist(sequence: TokenSequence, k: int, temperature: float) -> int:
    """The future of the distribution after the last token."""
    start, stop = sequence.computed, len(sequence.tokens)
    if start != stop - 1 or not sequence.output.own:  # it is not the step after another one
        if not 0 < sequence.pending() <= KEPT_INPUTS or sequence.images.after(sequence.computed):
            sequence.flush()
            return int(bindings.output_text.get_next_dist(sequence.queue, [sequence.output_embed, 1], k, temperature))
        start = sequence.computed
    room(sequence.offset + stop, sequence.info.max_context, sequence.info.name)
    queue = sequence.busy_queue
    inputs = queue.input if stop - start == 1 else list(queue.inputs(stop - start).ranges)
    future = _step(sequence, queue, sequence.tokens[start:], inputs, k, temperature)
    sequence.computed = sequence.output_of = stop
    step = LastStep(stop, sequence.pages, sequence.output.own, k, temperature)
    sequence.last_step = queue.last_step = step if step.is_short else None
    return future


def _step(
    sequence: TokenSequence, queue: Queue, tokens: list[int], inputs: list[int], k: int, temperature: float
) -> int:
    pages, start, stop = sequence.pages, sequence.computed, sequence.computed + len(tokens)
    if stop > pages.capacity:
        pages.reserve(queue.number, stop)
    positions = list(range(start + sequence.offset, stop + sequence.offset))
    lists = queue.number, pages.context, inputs, pages.output, sequence.output.own, tokens, positions, _NO_MASK
    return int(bindings.forward.forward(*lists, sequence.adapter, 0, k, temperature, False))


def step_and_sample(sequence: TokenSequence, token: int, sampler: int) -> int:
    """Runs one token or token reference, keeps its output and samples the next token there. Gives the future."""
    place, queue, pages = sequence.computed, sequence.busy_queue, sequence.pages
    if not sequence.output.own:
        sequence.output.take(queue)
    if place >= pages.capacity:
        pages.reserve(queue.number, place + 1)
    filling = [token], [place + sequence.offset]
    lists = queue.number, pages.context, queue.input, pages.output, sequence.output.own, *filling, _NO_MASK
    future = bindings.forward.forward(*lists, sequence.adapter, sampler, 0, 0.0, False)
    sequence.computed = sequence.output_of = place + 1
    return int(future)
