"""Batches under formation: commands of one kind, with virtual addresses resolved to physical slots as they are added.

Everything is gathered in typed arrays and turned into numpy arrays once per batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pie_control.resources.pool import Pool
from pie_control.resources.ranges import Range
from pie_inference.protocol import CopyKvpage, EmbedTxt, GetLogprobs, GetNextDist, ModelDescription, Sample

from .commands import CopyCommand, DistCommand, EmbedCommand, SampleCommand, ScoreCommand, with_literals
from .queues import CommandQueue


class WrittenEmbeds:
    """What commands of each queue write in this batch; sets are built only for queues with several commands in it."""

    def __init__(self) -> None:
        self.first: dict[CommandQueue, Sequence[Range]] = {}  # by the first command of a queue
        self._sets: dict[CommandQueue, set[int]] = {}

    def disjoint(self, queue: CommandQueue, *touched: Sequence[Range]) -> bool:
        """Whether no earlier command of the queue in this batch writes one of the embeds."""
        if queue not in self._sets:
            self._sets[queue] = set(addresses(self.first.get(queue, ())))
        written = self._sets[queue]
        return all(written.isdisjoint(addresses(ranges)) for ranges in touched)

    def note(self, queue: CommandQueue, ranges: Sequence[Range]) -> None:
        if queue in self._sets:
            self._sets[queue].update(addresses(ranges))
        else:
            self.first[queue] = ranges


def addresses(ranges: Sequence[Range]) -> Iterator[int]:
    return chain.from_iterable(range(first, last) for first, last in ranges)


def as_int32(values: Any) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


class CopyBatch:
    """Stage 0."""

    name = "copy_kvpage"

    def __init__(self) -> None:
        self.commands: list[CopyCommand] = []
        self._queues: set[CommandQueue] = set()
        self._sources: list[NDArray[np.int64]] = []
        self._targets: list[NDArray[np.int64]] = []

    def try_add(self, queue: CommandQueue, command: CopyCommand) -> bool:
        """One copy of a queue in a wave: the next one may read what it writes."""
        if queue in self._queues:
            return False
        self._queues.add(queue)
        self.commands.append(command)
        size = command.account.model.page_size
        physical = np.frombuffer(command.account.pages.physical, np.int32).astype(np.int64)
        for slots, into in ((command.source, self._sources), (command.target, self._targets)):
            into.append(physical[slots // size] * size + slots % size)
        return True

    def build(self) -> CopyKvpage:
        ends = np.cumsum([0, *map(len, self._targets)])
        return CopyKvpage(
            as_int32(np.concatenate(self._sources)), as_int32(np.concatenate(self._targets)), as_int32(ends)
        )


class EmbedBatch:
    """Stage 1."""

    name = "embed_txt"

    def __init__(self) -> None:
        self.commands: list[EmbedCommand] = []
        self._written = WrittenEmbeds()
        self._embeds: array[int] = array("i")
        self._tokens: array[int] = array("i")
        self._ends: array[int] = array("i", [0])

    def try_add(self, queue: CommandQueue, command: EmbedCommand) -> bool:
        """Adds a command, unless it writes an embed that an earlier one of its queue writes."""
        if queue in self._written.first and not self._written.disjoint(queue, command.embeds):
            return False
        self._written.note(queue, command.embeds)
        self.commands.append(command)
        physical = command.account.embeds.physical
        for first, last in command.embeds:
            self._embeds.extend(physical[first:last])
        if command.references:
            self._tokens.extend(with_literals(command.tokens, command.references))
        else:
            self._tokens.extend(command.tokens)
        self._ends.append(len(self._tokens))
        return True

    def build(self) -> EmbedTxt:
        return EmbedTxt(as_int32(self._embeds), as_int32(self._tokens), as_int32(self._ends))


class SampleBatch:
    """Stage 3. Takes a token slot for each command."""

    name = "sample"

    def __init__(self, model: ModelDescription, wave: int, pool: Pool) -> None:
        self.commands: list[SampleCommand] = []
        self._model = model
        self._wave = wave
        self._pool = pool
        self._embeds: array[int] = array("i")
        self._slots: array[int] = array("i")
        self._uniform: array[float] = array("d")
        self._recent: array[int] = array("i")
        self._recent_ends: array[int] = array("i", [0])
        self._allowed: list[bytes] = []
        self._allowed_rows: array[int] = array("i")

    def try_add(self, queue: CommandQueue, command: SampleCommand) -> bool:
        """Adds a command if there is a row and a token slot, and it names no token of this very batch."""
        if len(self.commands) >= self._model.max_batch_rows or not self._pool.free:
            return False
        if command.references and any(source.wave == self._wave for _, source in command.references):
            return False
        self._add(command, self._pool.take(1)[0])
        return True

    def _add(self, command: SampleCommand, slot: int) -> None:
        self.commands.append(command)
        command.source.slot = slot
        command.source.wave = self._wave
        self._embeds.append(command.account.embeds.physical[command.embed])
        self._slots.append(slot)
        self._uniform.append(command.uniform)
        if command.recent:
            self._recent.extend(with_literals(command.recent, command.references))
        self._recent_ends.append(len(self._recent))
        self._allowed_rows.append(-1 if command.allowed is None else len(self._allowed))
        if command.allowed is not None:
            self._allowed.append(command.allowed)

    def token_slots(self) -> list[int]:
        return self._slots.tolist()

    def build(self) -> Sample:
        params = _sampler_columns(self.commands)
        width = -(-self._model.vocab_size // 8)
        return Sample(
            embeds=as_int32(self._embeds),
            token_slots=as_int32(self._slots),
            uniform=np.array(self._uniform, np.float64),
            recent_indptr=as_int32(self._recent_ends),
            recent=as_int32(self._recent),
            allowed_rows=as_int32(self._allowed_rows),
            allowed=np.frombuffer(b"".join(self._allowed), np.uint8).reshape(-1, width),
            **params,
        )


def _sampler_columns(commands: list[SampleCommand]) -> dict[str, NDArray[np.generic]]:
    rows = [command.params.row for command in commands]
    columns = np.array(rows, np.float64).T
    reals = columns.astype(np.float32)
    return {
        "temperature": reals[0],
        "top_k": columns[1].astype(np.int32),
        "top_p": reals[2],
        "min_p": reals[3],
        "repetition": reals[4],
        "frequency": reals[5],
        "presence": reals[6],
    }


class DistBatch:
    """Stage 3."""

    name = "get_next_dist"

    def __init__(self, max_rows: int) -> None:
        self.commands: list[DistCommand] = []
        self._max_rows = max_rows

    def try_add(self, queue: CommandQueue, command: DistCommand) -> bool:
        """Adds a command if there is a row."""
        if len(self.commands) >= self._max_rows:
            return False
        self.commands.append(command)
        return True

    def build(self) -> GetNextDist:
        commands = self.commands
        return GetNextDist(
            embeds=as_int32([c.account.embeds.physical[c.embed] for c in commands]),
            k=as_int32([c.k for c in commands]),
            temperature=np.array([c.temperature for c in commands], np.float32),
        )


class ScoreBatch:
    """Stage 3."""

    name = "get_logprobs"

    def __init__(self, max_rows: int) -> None:
        self.commands: list[ScoreCommand] = []
        self._max_rows = max_rows

    def try_add(self, queue: CommandQueue, command: ScoreCommand) -> bool:
        """Adds a command if there is a row."""
        if len(self.commands) >= self._max_rows:
            return False
        self.commands.append(command)
        return True

    def build(self) -> GetLogprobs:
        commands = self.commands
        return GetLogprobs(
            embeds=as_int32([c.account.embeds.physical[c.embed] for c in commands]),
            indptr=as_int32(np.cumsum([0, *(len(c.tokens) for c in commands)])),
            tokens=as_int32(list(chain.from_iterable(c.tokens for c in commands))),
        )
