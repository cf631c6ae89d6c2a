"""Samples a token at an output embed, on the worker. Its future is a token reference at once."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from pie_control.errors import CallError, InvalidArgument
from pie_control.record import Int32
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.holdings import Holdings, Reference, TokenSource
from pie_control.resources.kinds import EMBEDS, Resource
from pie_control.resources.pool import Pool
from pie_control.resources.ranges import Range
from pie_inference.protocol import ModelDescription, Result, Sample, SampleResult

from ..arrays import as_int32, ends_of, join
from ..columns import MatcherColumns, RowsTold, SampleColumns
from ..kind import Batch, Call, Handle, Stage, WaveContext, WorkerCommand
from ..outputs import check_output, note_reading
from ..sampler import Bias, Sampler, SamplingParams, bias_arrays, join_params, param_columns, param_rows
from ..scores import MOST_ALTERNATIVES, NO_SCORES, Scores, read_scores, scores_fit
from ..tokens import MOST_LISTED, MOST_OF_CONTEXT, check_recent, parse_allowed, resolve
from ..values import Token, Value


class ScoredToken(NamedTuple):
    """What the future gives if log-probabilities were asked for (`Scores`)."""

    token: int
    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]


class SampleCommand(WorkerCommand, frozen=True):
    """`recent`: tokens that penalties count; `allowed`: bits of the tokens that may come, lowest bit first."""

    gives_token = True
    touches = (EMBEDS,)

    embed: Int32
    params: SamplingParams
    uniform: float
    recent: Sequence[Int32]
    allowed: bytes | None
    bias: Bias | None = None
    alternatives: Int32 = NO_SCORES

    def fits(self, model: ModelDescription) -> bool:
        listed = len(self.recent) <= model.max_context and self.names(self.recent)
        return super().fits(model) and listed and options_fit(self.allowed, self.bias, model)

    def uses(self, resource: Resource, page_size: int) -> Sequence[Range]:
        return ((self.embed, self.embed + 1),) if resource is EMBEDS else ()


def options_fit(allowed: bytes | None, bias: Bias | None, model: ModelDescription) -> bool:
    """Whether a mask of tokens and a bias are for this model."""
    return (allowed is None or len(allowed) == -(-model.vocab_size // 8)) and (bias is None or bias.fits)


def issue(
    space: AddressSpace,
    queue: int,
    embed: int,
    sampler: Sampler,
    recent: Sequence[int],
    allowed: str,
    logprobs: int,
    future: int,
) -> None:
    """`recent` may hold token references of this queue, and as many tokens as the model's context at most. `allowed` is
    base64 of ceil(vocab_size / 8) bytes, lowest bit first; "": all tokens. `logprobs`: 0, or one more than the number
    of alternatives. Raises InvalidArgument, NotFound, InvalidState (embed never filled, or an input)."""
    if not (recent or allowed or logprobs):
        issue_sample(space, queue, embed, sampler, (), (), None, future)
        return
    space.check_command(queue)
    if logprobs > MOST_ALTERNATIVES + 1:
        raise InvalidArgument(
            f"{logprobs} log-probabilities of a token are asked for; there may be {MOST_ALTERNATIVES + 1}: "
            "get-next-dist gives more"
        )
    bits = parse_allowed(allowed, space.model.vocab_size) if allowed else None
    check_recent(space, recent)
    literal, references = resolve(space, queue, recent) if recent else ((), ())
    alternatives = logprobs - 1 if logprobs else NO_SCORES
    issue_sample(space, queue, embed, sampler, literal, references, bits, future, alternatives)


def issue_sample(
    space: AddressSpace,
    queue: int,
    embed: int,
    sampler: Sampler,
    recent: Sequence[int],
    references: Sequence[Reference],
    allowed: bytes | None,
    future: int,
    alternatives: int = NO_SCORES,
) -> None:
    """Issues a sample, with 0 in `recent` where a reference stands."""
    check_output(space, queue, embed)
    if sampler.bias is not None:
        sampler.bias.check(space.model.vocab_size)
    seq, after = note_reading(space, queue, ((embed, embed + 1),))
    space.add_sample(future, queue)
    space.issue(
        SampleCommand(
            space.owner,
            queue,
            seq,
            after,
            future,
            references,
            embed,
            sampler.params,
            sampler.draw(),
            recent,
            allowed,
            sampler.bias,
            alternatives,
        )
    )


def _result_bytes(embed: int, sampler: Sampler, recent: Sequence[int], allowed: str, logprobs: int) -> int:
    return 8 * logprobs


class SampleBatch(Batch[SampleCommand]):
    """One row and one token slot for each command, or step. No command names a token of this very batch."""

    def __init__(self, context: WaveContext) -> None:
        super().__init__(context)
        self._pool: Pool = context.token_slots
        self._sources: list[TokenSource] = []
        self._embeds: array[int] = array("i")
        self._slots: array[int] = array("i")
        self._recent: array[int] = array("i")
        self._recent_ends: array[int] = array("i", [0])
        self._allowed: list[bytes] = []
        self._allowed_rows: array[int] = array("i")
        self._columns: SampleColumns | None = None
        self._is_special = False  # whether a row has a bias, or asks for log-probabilities
        self._is_asked = False  # whether one asks for log-probabilities

    @property
    def room(self) -> int:
        """Rows that can be added still."""
        return min(self.context.model.max_batch_rows - len(self.commands), self._pool.free) - self.rows

    def has_room(self) -> bool:
        """Whether a further row can be added."""
        return self.room > 0

    def try_add(self, queue: Hashable, command: SampleCommand, holdings: Holdings, done: int) -> int:
        if self.room <= 0:
            return done
        if self._recent and len(self._recent) + len(command.recent) > MOST_LISTED:
            return done
        if command.references and self._names_own(command, holdings):
            return done
        self._add(command, holdings, self._pool.take(1)[0])
        return 1

    def _names_own(self, command: SampleCommand, holdings: Holdings) -> bool:
        return any(holdings.tokens[future].wave == self.context.wave for _, future in command.references)

    def _add(self, command: SampleCommand, holdings: Holdings, slot: int) -> None:
        self.commands.append(command)
        assert command.future is not None
        source = holdings.tokens[command.future]
        source.slot, source.wave = slot, self.context.wave
        self._sources.append(source)
        self._embeds.append(holdings.embeds.physical[command.embed])
        self._slots.append(slot)
        if command.recent:
            self._recent.extend(holdings.literals(command.recent, command.references))
        self._recent_ends.append(len(self._recent))
        if command.bias is not None or command.alternatives != NO_SCORES:
            self._is_special = True
        self._allowed_rows.append(-1 if command.allowed is None else len(self._allowed))
        if command.allowed is not None:
            self._allowed.append(command.allowed)

    def promise(self, rows: int) -> None:
        """More rows of decode runs will be added."""
        self.rows += rows

    def extend(self, columns: SampleColumns) -> None:
        """Adds rows of decode runs. Their token slots were taken from the pool of the wave, and come back as those of
        commands do."""
        self._columns = columns
        self._is_special = self._is_special or columns.special is not None
        self.rows = len(columns.token_slots)

    def build(self) -> Sample:
        more, params = self._columns, param_columns(param_rows([command.params for command in self.commands]))
        embeds, slots = as_int32(self._embeds), as_int32(self._slots)
        uniform = np.array([command.uniform for command in self.commands], np.float64)
        if more is not None:
            embeds, slots = join(embeds, more.embeds), join(slots, as_int32(more.token_slots))
            uniform, params = (
                join(uniform, more.uniform),
                join_params(params, len(self.commands), more.params, self.rows),
            )
        batch = Sample(
            embeds=embeds,
            token_slots=slots,
            uniform=uniform,
            **params,
            **self._recent_columns(),
            **self._mask_columns(),
            **({} if more is None or more.grammars is None else _matchers(len(self.commands), more.grammars)),
        )
        return self._with_special(batch) if self._is_special else batch

    def _recent_columns(self) -> dict[str, NDArray[Any]]:
        recent, ends = as_int32(self._recent), as_int32(self._recent_ends)
        if self._columns is not None and len(self._columns.recent):
            recent = join(recent, self._columns.recent)
            ends = np.concatenate((ends, ends[-1] + self._columns.recent_counts.cumsum(dtype=np.int32)))
        elif len(recent):
            ends = np.concatenate((ends, np.full(self.rows, ends[-1], np.int32)))
        return {"recent_indptr": ends, "recent": recent} if len(recent) else {}

    def _mask_columns(self) -> dict[str, NDArray[Any]]:
        masks, rows = self._allowed, as_int32(self._allowed_rows)
        if (more := self._columns) is not None:
            moved = np.where(more.allowed_rows < 0, -1, more.allowed_rows + len(masks)).astype(np.int32)
            rows, masks = join(rows, moved), [*masks, *more.allowed]
        if not masks:
            return {}
        size = -(-self.context.model.vocab_size // 8)
        return {"allowed_rows": rows, "allowed": np.frombuffer(b"".join(masks), np.uint8).reshape(-1, size)}

    def _with_special(self, batch: Sample) -> Sample:
        """With what few rows have."""
        biases = [command.bias for command in self.commands]
        alternatives = [command.alternatives for command in self.commands]
        if self._columns is not None:
            more = self._columns.special or [(None, NO_SCORES)] * self.rows
            biases += [bias for bias, _ in more]
            alternatives += [count for _, count in more]
        self._is_asked = max(alternatives) != NO_SCORES
        asked = as_int32(alternatives) if self._is_asked else None
        return msgspec.structs.replace(batch, alternatives=asked, **bias_arrays(biases))

    def values(self, result: Result) -> Sequence[Value]:
        if not isinstance(result, SampleResult) or len(result.tokens) != self.count:
            raise self.misfit(result)
        if result.over is not None and len(result.over) != self.count:
            raise self.misfit(result)
        number = len(self.commands)
        tokens = result.tokens[:number].tolist()
        if not scores_fit(result, self._is_asked):
            raise self.misfit(result)
        if not self._is_asked:
            return [Token(token) for token in tokens]
        scores = dict(read_scores(result, 0, number))
        return [self._value(place, token, scores.get(place)) for place, token in enumerate(tokens)]

    def _value(self, place: int, token: int, scores: Scores | None) -> Value:
        """A command that failed beside others has no scores, and nobody sees its value."""
        if self.commands[place].alternatives == NO_SCORES:
            return Token(token)
        return ScoredToken(token, scores.tokens, scores.logprobs) if scores is not None else ScoredToken(token, *_NONE)

    def rows_told(self, result: Result | None) -> RowsTold | None:
        if not isinstance(result, SampleResult):
            return None
        first = len(self.commands)
        scores = {row - first: score for row, score in read_scores(result, first, len(result.tokens))}
        return RowsTold(result.tokens[first:], None if result.over is None else result.over[first:], scores)

    def completed(self, values: Sequence[Value], errors: Mapping[int, CallError]) -> None:
        """Commands formed from now on carry the tokens themselves, and those in flight run before a later one can write
        the slots: they are free again."""
        for row, source in enumerate(self._sources):
            if row in errors:
                source.error = errors[row]
            else:
                source.value = values[row][0]
        self._pool.release(self._slots, None)
        if self._columns is not None:
            self._pool.release(self._columns.token_slots, None)


_NONE = np.zeros(0, np.int32), np.zeros(0, np.float32)


def _matchers(commands: int, rows: MatcherColumns) -> dict[str, NDArray[Any]]:
    """The fields of `Sample` about matchers, which only decode runs have."""
    return {
        "matchers": np.concatenate([np.zeros(commands, np.int64), rows.matchers]),
        "matched": np.concatenate([np.zeros(commands, np.int32), rows.matched]),
        "start_indptr": ends_of([0] * commands + rows.start_counts.tolist()),
        "starts": np.frombuffer(rows.starts, np.uint8),
        "ended": rows.ended,
    }


CALL = SampleCommand.call = Call(
    __name__,
    issue,
    value=Token,
    more_values=(ScoredToken,),
    result_bytes=_result_bytes,
    handles={"sampler": Handle(Sampler)},
    most={"recent": MOST_OF_CONTEXT},
    stage=Stage.OUTPUT,
    new_batch=SampleBatch,
)
