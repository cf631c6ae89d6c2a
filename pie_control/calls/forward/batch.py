"""The forward batch under formation: ragged sequences; their keys are runs of slots in pages."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pie_control.ids import Owner
from pie_control.resources.holdings import Holdings
from pie_control.resources.intervals import join_intervals, take_intervals
from pie_control.resources.kinds import EMBEDS, PAGES
from pie_control.resources.ranges import Range
from pie_control.resources.tables.contexts import NO_STATE, Mask
from pie_inference.protocol import Forward

from ..adapters import NO_ADAPTER
from ..arrays import NotedEmbeds, append_slots, as_int32, join, offsets
from ..columns import ForwardColumns
from ..kind import Command, LongBatch, WaveContext
from .command import PassCommand
from .masks import masks, more_without_masks

MOST_PAIRS = 1 << 26
"""Pairs of query and key in the masks that a worker makes for a batch, where keys are seen by position."""


class ForwardCommand(PassCommand, frozen=True):
    """A `forward`, and nothing else."""


class ForwardBatch(LongBatch[PassCommand]):
    """`tokens` is the number of input tokens so far. A command may be in several batches, a part in each."""

    def __init__(self, context: WaveContext) -> None:
        super().__init__(context)
        self._written = NotedEmbeds()
        self._read = NotedEmbeds()
        self._scratch = context.scratch_slot
        self._outputs = _Outputs()
        self._keys = _Keys(context.model.page_size)
        self._ends: array[int] = array("i", [0])
        self._embeds: array[int] = array("i")
        self._positions: array[int] = array("i")
        self._slots: array[int] = array("i")
        self._by_position: dict[int, int] = {}  # sequences that see so, and the keys at their front
        self._masks: dict[int, Mask] = {}  # of sequences that have one
        self._adapters: dict[int, int] = {}  # of sequences that have one
        self._states = _States()
        self._pairs = MOST_PAIRS
        self._columns: ForwardColumns | None = None

    def sizes(self) -> Sequence[int]:
        return [end - begin for begin, end in pairwise(self._ends)]

    def can_add(self, queue: Hashable, command: PassCommand) -> bool:
        """Not if it reads or writes an embed that an earlier command of its queue writes in this batch, or a state that
        another one writes."""
        if command.context.states is not None and self._states.conflicts(command.owner, *command.context.states):
            return False
        return queue not in self._written.first or self._written.disjoint(queue, command.inputs, command.outputs)

    def lets_pass(self, queue: Hashable, command: Command) -> bool:
        """If it touches no pages, and no embeds that forwards of its queue read or write here."""
        page_size = self.context.model.page_size
        if command.uses(PAGES, page_size):
            return False
        return self.lets_fill(queue, command.uses(EMBEDS, page_size))

    def lets_fill(self, queue: Hashable, embeds: Sequence[Range]) -> bool:
        """Whether a later command of this queue may fill these embeds before this batch runs."""
        return self._read.disjoint(queue, embeds) and self._written.disjoint(queue, embeds)

    def room_for(self, command: PassCommand) -> int:
        """The room ends with the worker's masks for rows by position. The first such command of a batch may always have
        some; one that must not be split, all."""
        keys = command.context.tokens + command.size
        first = self._pairs == MOST_PAIRS
        if command.whole:
            return command.size if first or command.size * keys <= self._pairs else 0
        return max(self._pairs // keys, int(first))

    def reserve(self, command: PassCommand, parts: int) -> None:
        self._pairs -= parts * (command.context.tokens + command.size)

    def add(self, queue: Hashable, command: PassCommand, holdings: Holdings, begin: int, end: int) -> None:
        """Adds the input tokens `begin` .. `end`."""
        self._read.note(queue, command.inputs)
        self._written.note(queue, command.outputs)
        self.commands.append(command)
        self._add_inputs(command, holdings.embeds.physical, begin, end)
        self._outputs.add(command, holdings.embeds.physical, begin, end, self.tokens)
        self._add_keys(command, holdings.pages.physical, begin, end)
        if command.context.by_position:
            self._by_position[len(self.commands) - 1] = command.context.tokens
        if command.context.mask is not None:
            self._masks[len(self.commands) - 1] = command.context.mask.part(begin, end)
        if command.adapter != NO_ADAPTER:
            self._adapters[len(self.commands) - 1] = command.adapter
        self.tokens += end - begin
        self._ends.append(self.tokens)
        if command.context.states is not None:
            self._states.add(command.owner, *command.context.states, holdings.states.physical, bool(begin))
            if command.context.left:
                first = self.tokens - (end - begin)
                self._states.add_left(command.owner, command.context.left, holdings.states.physical, first)

    def add_step(self, queue: Hashable, command: PassCommand, holdings: Holdings) -> None:
        """Adds a command of one token that keeps its key and has one output, without a mask: the rule where programs
        decide about each token."""
        assert command.own is not None
        embeds, pages = holdings.embeds.physical, holdings.pages.physical
        self._read.note(queue, command.inputs)
        self._written.note(queue, command.outputs)
        self.commands.append(command)
        self._embeds.append(embeds[command.inputs[0][0]])
        self._positions.append(command.positions[0])
        self._outputs.rows.append(self.tokens)
        self._outputs.embeds.append(embeds[command.outputs[0][0]])
        slot = command.own[0][0]
        self._keys.add(join_intervals(command.context.intervals, command.own), pages)
        self._keys.close()
        page, offset = divmod(slot, self.context.model.page_size)
        self._slots.append(pages[page] * self.context.model.page_size + offset)
        if command.adapter != NO_ADAPTER:
            self._adapters[len(self.commands) - 1] = command.adapter
        self.tokens += 1
        self._ends.append(self.tokens)
        if command.context.states is not None:
            self._states.add(command.owner, *command.context.states, holdings.states.physical, False)

    def _add_inputs(self, command: PassCommand, physical: array[int], begin: int, end: int) -> None:
        if end - begin == command.size:
            for first, last in command.inputs:
                self._embeds.extend(physical[first:last])
            self._positions.extend(command.positions)
        else:
            for first, last in take_intervals(command.inputs, begin, end):
                self._embeds.extend(physical[first:last])
            self._positions.extend(command.positions[begin:end])

    def _add_keys(self, command: PassCommand, pages: array[int], begin: int, end: int) -> None:
        context, own = command.context.intervals, command.own
        if own is None:
            self._keys.add(context, pages)
            self._add_scratch(end - begin)
        else:
            before = own if end == command.size else take_intervals(own, 0, end)
            self._keys.add(join_intervals(context, before), pages)
            added = own if not begin and before is own else take_intervals(own, begin, end)
            append_slots(added, pages, self.context.model.page_size, self._slots)
        self._keys.close()

    def _add_scratch(self, count: int) -> None:
        start = self._scratch
        self._scratch += count
        self._keys.add_physical(start, start + count)
        self._slots.extend(range(start, start + count))

    def extend(self, columns: ForwardColumns) -> None:
        """Adds rows of decode runs."""
        self._columns = columns
        self.rows = len(columns.slots)
        self.tokens += self.rows

    def build(self) -> Forward:
        if self._columns is not None and not self.commands:
            return _of_rows(self._columns)
        alone = self._build_commands()
        return alone if self._columns is None else _extended(alone, self._columns)

    def _build_commands(self) -> Forward:
        runs = self._keys.build()
        return Forward(
            q_indptr=as_int32(self._ends),
            q_embeds=as_int32(self._embeds),
            q_positions=as_int32(self._positions),
            q_slots=as_int32(self._slots),
            out_rows=as_int32(self._outputs.rows),
            out_embeds=as_int32(self._outputs.embeds),
            position_keys=self._column(self._by_position, 0) if self._by_position else None,
            adapters=self._column(self._adapters, NO_ADAPTER) if self._adapters else None,
            **runs,
            **(masks(self._masks, len(self.commands)) if self._masks else {}),
            **(self._states.build(self._ends) if self.context.model.num_states else {}),
        )

    def _column(self, values: Mapping[int, int], default: int) -> NDArray[np.int32]:
        return as_int32([values.get(sequence, default) for sequence in range(len(self.commands))])


def _of_rows(rows: ForwardColumns) -> Forward:
    """A batch of rows of decode runs alone."""
    queries = np.arange(len(rows.slots) + 1, dtype=np.int32)
    return Forward(
        q_indptr=queries,
        q_embeds=rows.embeds,
        q_positions=rows.positions,
        q_slots=rows.slots,
        kv_indptr=offsets(rows.key_counts),
        kv_pages=rows.pages,
        kv_begins=rows.begins,
        kv_ends=rows.ends,
        dense=rows.dense,
        out_rows=queries[:-1],
        out_embeds=rows.outputs,
        adapters=rows.adapters,
        state_reads=None if rows.states is None else rows.states[0],
        state_writes=None if rows.states is None else rows.states[1],
    )


def _extended(batch: Forward, rows: ForwardColumns) -> Forward:
    """The batch with rows of decode runs behind its commands."""
    queries = batch.q_indptr[-1] + np.arange(len(rows.slots) + 1, dtype=np.int32)
    return Forward(
        q_indptr=join(batch.q_indptr, queries[1:]),
        q_embeds=join(batch.q_embeds, rows.embeds),
        q_positions=join(batch.q_positions, rows.positions),
        q_slots=join(batch.q_slots, rows.slots),
        kv_indptr=join(batch.kv_indptr, batch.kv_indptr[-1] + np.cumsum(rows.key_counts, dtype=np.int32)),
        kv_pages=join(batch.kv_pages, rows.pages),
        kv_begins=join(batch.kv_begins, rows.begins),
        kv_ends=join(batch.kv_ends, rows.ends),
        dense=join(batch.dense, rows.dense),
        out_rows=join(batch.out_rows, queries[:-1]),
        out_embeds=join(batch.out_embeds, rows.outputs),
        position_keys=None if batch.position_keys is None else join(batch.position_keys, np.zeros_like(rows.slots)),
        adapters=_all_adapters(batch, rows),
        **_all_states(batch, rows),
        **more_without_masks(batch, len(rows.slots)),
    )


def _all_states(batch: Forward, rows: ForwardColumns) -> dict[str, NDArray[np.generic]]:
    if batch.state_reads is None or batch.state_writes is None or rows.states is None:
        return {}
    begins, leaves = rows.states
    return {"state_reads": join(batch.state_reads, begins), "state_writes": join(batch.state_writes, leaves)}


def _all_adapters(batch: Forward, rows: ForwardColumns) -> NDArray[np.int32] | None:
    if batch.adapters is None and rows.adapters is None:
        return None
    of_commands, of_rows = batch.adapters, rows.adapters
    if of_commands is None:
        of_commands = np.full(len(batch.q_indptr) - 1, NO_ADAPTER, np.int32)
    return join(of_commands, np.full_like(rows.slots, NO_ADAPTER) if of_rows is None else of_rows)


class _Outputs:
    """Rows of the batch whose output is kept, and the embeds that they go to."""

    def __init__(self) -> None:
        self.rows: array[int] = array("i")
        self.embeds: array[int] = array("i")

    def add(self, command: PassCommand, physical: array[int], begin: int, end: int, row: int) -> None:
        """The last tokens of the command have an output each; those in begin .. end start at `row`."""
        if not command.outputs:
            return
        if end - begin == 1 == command.size:
            self.embeds.append(physical[command.outputs[0][0]])
            self.rows.append(row)
            return
        index = command.size - sum(last - first for first, last in command.outputs)
        for first, last in command.outputs:
            low, high = max(begin - index, 0), min(end - index, last - first)
            if low < high:
                self.embeds.extend(physical[first + low : first + high])
                self.rows.extend(range(row + index + low - begin, row + index + high - begin))
            index += last - first


class _States:
    """Slots of states that the sequences begin with and leave."""

    def __init__(self) -> None:
        self._begins: array[int] = array("i")
        self._leaves: array[int] = array("i")
        self._read: set[tuple[Owner, int]] = set()
        self._written: set[tuple[Owner, int]] = set()
        self._left: list[tuple[int, int]] = []  # rows before the last one of a sequence, and the slots that they leave

    def conflicts(self, owner: Owner, begins: int, leaves: int) -> bool:
        """Whether a sequence reads what another one writes, or the other way round."""
        written = (owner, leaves)
        return (owner, begins) in self._written or written in self._written or written in self._read

    def add(self, owner: Owner, begins: int, leaves: int, physical: array[int], goes_on: bool) -> None:
        """Adds a sequence. One that `goes_on` is a later part of a command: it begins with what the last part left."""
        if goes_on:
            begins = leaves
        for address, slots, used in ((begins, self._begins, self._read), (leaves, self._leaves, self._written)):
            slots.append(NO_STATE if address == NO_STATE else physical[address])
            if address != NO_STATE:
                used.add((owner, address))

    def add_left(self, owner: Owner, left: Sequence[int], physical: array[int], first: int) -> None:
        """The rows from `first` on leave these states, too; without memory, none."""
        for row, address in enumerate(left, first):
            self._left.append((row, physical[address] if address < len(physical) else NO_STATE))
            self._written.add((owner, address))

    def build(self, ends: array[int]) -> dict[str, NDArray[np.generic]]:
        writes = np.full(ends[-1], NO_STATE, np.int32)
        for row, slot in self._left:
            writes[row] = slot
        writes[as_int32(ends)[1:] - 1] = as_int32(self._leaves)
        return {"state_reads": as_int32(self._begins), "state_writes": writes}


class _Keys:
    """Runs of slots within pages, for all sequences one behind the other."""

    def __init__(self, page_size: int) -> None:
        self._size = page_size
        self._pages: array[int] = array("i")
        self._sequence_ends: array[int] = array("i", [0])
        self._begin_rows: list[int] = []  # runs that do not begin at 0
        self._begins: list[int] = []
        self._end_rows: list[int] = []  # runs that may not fill their page
        self._ends: list[int] = []
        self._dense: list[bool] = []
        self._is_dense = True  # the sequence so far
        self._partial = False  # its last run does not fill its page

    def add(self, intervals: Sequence[Range], physical: array[int]) -> None:
        """Intervals of virtual slots; `physical` has the page of each address."""
        size = self._size
        for start, stop in intervals:
            first, last = start // size, (stop - 1) // size
            self._note_edges(start - first * size, stop - last * size, last - first + 1)
            self._pages += physical[first : last + 1]

    def add_physical(self, start: int, stop: int) -> None:
        size = self._size
        first, last = start // size, (stop - 1) // size
        self._note_edges(start - first * size, stop - last * size, last - first + 1)
        self._pages.extend(range(first, last + 1))

    def _note_edges(self, begin: int, end: int, count: int) -> None:
        row = len(self._pages)
        if begin:
            self._begin_rows.append(row)
            self._begins.append(begin)
        if begin or self._partial:
            self._is_dense = False
        self._partial = end < self._size
        if self._partial:
            self._end_rows.append(row + count - 1)
            self._ends.append(end)

    def close(self) -> None:
        """The sequence is complete."""
        self._sequence_ends.append(len(self._pages))
        self._dense.append(self._is_dense)
        self._is_dense, self._partial = True, False

    def build(self) -> dict[str, NDArray[np.generic]]:
        begins = np.zeros(len(self._pages), np.int32)
        ends = np.full(len(self._pages), self._size, np.int32)
        if self._begin_rows:
            begins[self._begin_rows] = self._begins
        if self._end_rows:
            ends[self._end_rows] = self._ends
        return {
            "kv_indptr": as_int32(self._sequence_ends),
            "kv_pages": as_int32(self._pages),
            "kv_begins": begins,
            "kv_ends": ends,
            "dense": np.array(self._dense, np.bool_),
        }
