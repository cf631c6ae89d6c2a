"""Runs the Transformer over embeds, with any of what can go beside it: tokens that fill the embeds, a mask, an adapter,
and what is read at once (forward.wit)."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.errors import InvalidArgument
from pie_control.resources.address_space import AddressSpace

from ..adapters import NO_ADAPTER, find_adapter
from ..fused import sample
from ..fused.last_step import remember
from ..fused.step import DistStep, SampleStep, Way, issue_step
from ..input_text import embed_txt
from ..introspective_forward import forward_with_scores
from ..introspective_forward.forward_with_scores import AttentionScores
from ..kind import Call, Handle, Stage
from ..output_text import get_next_dist
from ..output_text.get_next_dist import Dists
from ..sampler import Sampler
from ..values import Token
from . import plain
from .batch import ForwardBatch, ForwardCommand


def issue(
    space: AddressSpace,
    queue: int,
    context: Sequence[int],
    input_embeds: Sequence[int],
    output_pages: Sequence[int],
    output_embeds: Sequence[int],
    tokens: Sequence[int],
    positions: Sequence[int],
    mask: Sequence[int],
    adapter: str,
    sampler: Sampler | None,
    k: int,
    temperature: float,
    scores: bool,
    future: int,
) -> None:
    """`future` is for nothing where nothing is read. If a part is refused, nothing has happened. Raises
    InvalidArgument (no input, several things are read, tokens that do not fit, too long), NotFound, InvalidState (embed
    never filled, no free slot, a decode run of another queue uses an embed)."""
    space.check_queue(queue)
    reads_dist = k != 0 or temperature != 0
    if (sampler is not None) + reads_dist + scores > 1:
        raise InvalidArgument("several of a sampler, a distribution and scores are asked for: one can be read at once")
    number = find_adapter(space, adapter) if adapter else NO_ADAPTER
    way = Way(tokens, positions, input_embeds, context, output_pages, output_embeds, number, mask or None)
    if reads_dist:
        read_dist(space, queue, way, k, temperature, future)
    elif sampler is not None:
        _read_token(space, queue, way, sampler, future)
    else:
        _run(space, queue, way, scores, future)


def _run(space: AddressSpace, queue: int, way: Way, scores: bool, future: int) -> None:
    """Reads scores, or nothing."""
    fills, filling = bool(way.tokens or way.positions), None
    space.check_command(queue, 2 if fills else 1)
    if fills:
        positions, inputs = way.positions, embed_txt.check_lengths(way.tokens, way.positions, way.input_embeds)
        filling = embed_txt.check(space, queue, way.tokens, positions, inputs)
    else:
        inputs, positions = plain.filled(space, way.input_embeds)
    lists = way.context, inputs, positions, way.output_pages, way.output_embeds
    found = plain.check(space, queue, *lists, way.adapter, way.mask)
    if scores:
        forward_with_scores.check_size(space, found)
    if filling is not None:
        embed_txt.run(space, queue, inputs, positions, *filling)
    if scores:
        forward_with_scores.run(space, queue, found, future)
    else:
        plain.run(space, queue, found)


def read_dist(space: AddressSpace, queue: int, way: Way, k: int, temperature: float, future: int) -> None:
    """A forward whose distribution is read, for `issue` and for `continue_with_dist`. Raises as `issue`."""
    chosen, output = get_next_dist.check(space, k, temperature), way.output_embed

    def read() -> None:
        get_next_dist.issue(space, queue, (output, 1), chosen, temperature, future)

    command = issue_step(space, queue, way, future, DistStep, lambda: (chosen, temperature), read)
    remember(space, queue, command, way, chosen, temperature)


def _read_token(space: AddressSpace, queue: int, way: Way, sampler: Sampler, future: int) -> None:
    if sampler.bias is not None:
        sampler.bias.check(space.model.vocab_size)
    output = way.output_embed

    def read() -> None:
        sample.issue_sample(space, queue, output, sampler, (), (), None, future)

    issue_step(space, queue, way, future, SampleStep, lambda: (sampler.params, sampler.draw(), sampler.bias), read)


def _result_bytes(
    context: Sequence[int],
    input_embeds: Sequence[int],
    output_pages: Sequence[int],
    output_embeds: Sequence[int],
    tokens: Sequence[int],
    positions: Sequence[int],
    mask: Sequence[int],
    adapter: str,
    sampler: Sampler | None,
    k: int,
    temperature: float,
    scores: bool,
) -> int | None:
    if sampler is not None:
        return 0
    if k or temperature:
        return get_next_dist.result_bytes(output_embeds, k, temperature)
    return forward_with_scores.result_bytes(context, input_embeds) if scores else None


CALL = ForwardCommand.call = Call(
    __name__,
    issue,
    value=Dists,
    more_values=(Token, AttentionScores),
    result_bytes=_result_bytes,
    handles={"sampler": Handle(Sampler, optional=True)},
    needs={
        "tokens": "input_text",
        "adapter": "forward_with_adapter",
        "sampler": "fused",
        "temperature": "output_text",
        "scores": "introspective_forward",
    },
    stage=Stage.FORWARD,
    new_batch=ForwardBatch,
)
