"""A step of a program that decides about each token: `embed_txt`, a forward and an output in one command.

It waits in its queue as one, and goes as one: its parts are in three batches of the same wave. A long one is handed on
as the three commands that it is made of, so that its forward can be split between waves. Either way, nothing has
happened if one of the three is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, NamedTuple

from pie_control.errors import InvalidArgument
from pie_control.record import Int32
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.holdings import Holdings
from pie_control.resources.ranges import Range, total_length
from pie_inference.protocol import ModelDescription

from ..adapters import NO_ADAPTER
from ..forward import plain
from ..forward.batch import ForwardBatch
from ..forward.command import PassCommand
from ..input_text import embed_txt
from ..kind import Call, Stage
from ..output_text import get_next_dist
from ..sampler import Bias, SamplingParams
from ..scores import NO_SCORES
from . import sample

MOST_TOKENS = 16
"""Most tokens of one command. It is not split, so with many more it would have to wait for room."""


class StepCommand(PassCommand, frozen=True):
    """It is in each of the three batches as a command of that kind would be: it has the fields of all. `tokens` has 0
    where a reference stands."""

    output: ClassVar[Call]  # of the third batch

    tokens: Sequence[Int32]

    def fits(self, model: ModelDescription) -> bool:
        one = total_length(self.outputs) == 1 and not self.bounded and self.size <= model.max_batch_tokens
        answered = self.future is not None and len(self.tokens) == self.size and self.names(self.tokens)
        return super().fits(model) and one and answered

    @property
    def embeds(self) -> Sequence[Range]:
        """Those that the tokens fill."""
        return self.inputs

    @property
    def embed(self) -> int:
        """The one whose output is read."""
        return self.outputs[0][0]

    def try_join(
        self, batch: Callable[[Call], Any], queue: Hashable, holdings: Holdings, stage: int, room: int
    ) -> bool:
        """Adds it to the batches of a wave, of which its queue has something at no later stage than `stage`; `room` for
        input tokens. False, and nothing is added, if it does not fit or conflicts with what is there."""
        embeds, passes, outputs = batch(embed_txt.CALL), batch(ForwardBatch.call), batch(self.output)
        if self.size > room or not outputs.has_room() or not passes.can_add(queue, self):
            return False
        if stage > Stage.EMBED and (stage > Stage.FORWARD or not passes.lets_fill(queue, self.inputs)):
            return False
        if not embeds.try_add(queue, self, holdings, 0):
            return False
        if self.size == 1 and self.own is not None:  # a step has no mask
            passes.add_step(queue, self, holdings)
        else:
            passes.add(queue, self, holdings, 0, self.size)
        added: int = outputs.try_add(queue, self, holdings, 0)
        assert added, "there is room, and its output is read by nobody before it"
        return True


class DistStep(StepCommand, frozen=True):
    """A step whose distribution is read."""

    call = output = get_next_dist.CALL  # which answers it

    k: Int32
    temperature: float


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

    def fits(self, model: ModelDescription) -> bool:
        return super().fits(model) and (self.bias is None or self.bias.fits)


class Way(NamedTuple):
    """What the guest says of a forward, but for what is read: lists as `embed_txt` and `forward` take them."""

    tokens: Sequence[int]
    positions: Sequence[int]
    input_embeds: Sequence[int]
    context: Sequence[int]
    output_pages: Sequence[int]
    output_embeds: Sequence[int]
    adapter: int = NO_ADAPTER
    mask: Sequence[int] | None = None

    @property
    def output_embed(self) -> int:
        """The one that is read. Raises InvalidArgument."""
        if len(self.output_embeds) != 2 or self.output_embeds[1] != 1:
            raise InvalidArgument(
                "a distribution or a token is read at one output embed: name one, as a range of length 1"
            )
        return self.output_embeds[0]


def issue_step(
    space: AddressSpace,
    queue: int,
    way: Way,
    future: int,
    kind: type[StepCommand],
    fields: Callable[[], tuple[Any, ...]],
    issue_output: Callable[[], None],
) -> StepCommand | None:
    """The step, unless it is handed on in parts; without tokens, the inputs are filled. `fields` gives what is the
    kind's own, once nothing can be refused any more; `issue_output` issues the call of the output alone. Raises as
    `embed_txt` and `forward` do."""
    tokens, positions, input_embeds, context, output_pages, outputs, adapter, mask = way
    space.check_command(queue)
    if not tokens and not positions:
        space.check_command(queue, 2)
        plain.issue(space, queue, context, input_embeds, output_pages, outputs, adapter=adapter, mask=mask)
        issue_output()
        return None
    inputs = embed_txt.check_lengths(tokens, positions, input_embeds)
    if not inputs:
        raise InvalidArgument("a step needs at least one token")
    literal, references = embed_txt.check(space, queue, tokens, positions, inputs)
    found = plain.check(space, queue, context, inputs, positions, output_pages, outputs, adapter, mask)
    seen = found.context
    if found.size > min(MOST_TOKENS, space.model.max_batch_tokens) or seen.by_position or seen.mask is not None:
        space.check_command(queue, 3)
        embed_txt.issue(space, queue, tokens, positions, input_embeds)
        plain.issue(space, queue, context, input_embeds, output_pages, outputs, adapter=adapter, mask=mask)
        issue_output()
        return None
    after = found.after if space.has_one_queue else max(found.after, space.hazards.of_writing(queue, inputs))
    found = plain.bind_state(space, queue, found)
    command = kind(space.owner, queue, space.next_seq(), after, future, references, *found[1:], literal, *fields())
    _take_effect(space, command)
    if kind.gives_token:
        space.add_sample(future, queue)
    plain.hand_on(space, command)
    return command


def _take_effect(space: AddressSpace, command: StepCommand) -> None:
    """What a step that was just numbered changes."""
    queue, positions, own = command.queue, command.positions, command.own
    stamp = space.stamp(queue)
    if command.size == 1 and space.has_one_queue:  # as each step of a generation
        if own is not None:
            space.pages.append(own, positions, stamp)
        space.embeds.fill_step(command.inputs[0][0], command.embed, positions[0], stamp)
        return
    embed_txt.take_effect(space, queue, command.inputs, positions)
    plain.take_effect(space, command)
    space.hazards.note_reads(command.outputs, stamp, space.has_one_queue)
