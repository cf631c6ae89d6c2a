"""`embed_txt`, `forward` and `sample` in one call (paper, section 7.4)."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.resources.address_space import AddressSpace

from ..kind import define
from ..sampler import Bias, Sampler, SamplingParams
from ..scores import NO_SCORES
from . import sample
from .step import StepCommand, Way, issue_step


class SampleStep(StepCommand, frozen=True):
    """A step whose next token is sampled: any token may come, and penalties count none."""

    call = output = sample.CALL  # which answers it
    gives_token = True
    recent = ()
    allowed = None
    alternatives = NO_SCORES

    params: SamplingParams
    uniform: float
    bias: Bias | None


def issue(
    space: AddressSpace,
    queue: int,
    tokens: Sequence[int],
    positions: Sequence[int],
    input_embeds: Sequence[int],
    context: Sequence[int],
    output_pages: Sequence[int],
    output_embed: int,
    sampler: Sampler,
    future: int,
) -> None:
    """With one output embed. If one of the three is refused, nothing has happened. Raises as they do."""
    way = Way(tokens, positions, input_embeds, context, output_pages, output_embed)
    issue_way(space, queue, way, sampler, future)


def issue_way(space: AddressSpace, queue: int, way: Way, sampler: Sampler, future: int) -> None:
    """The same, with all that a step may have."""
    if sampler.bias is not None:
        sampler.bias.check(space.model.vocab_size)
    issue_step(
        space,
        queue,
        way,
        future,
        SampleStep,
        lambda: (sampler.params, sampler.draw(), sampler.bias),
        lambda: sample.issue(space, queue, way.output_embed, sampler, future),
    )


CALL = define(__name__, issue, value=sample.Token)
