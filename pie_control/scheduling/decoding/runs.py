"""Decode runs that are under way: a table with a row for each.

Theory of operation. A run leaves the commands of its queue when its first step is taken, and holds the queue until it
has ended. Each wave takes one step of every run that is *ready*, at most two of which are in flight: the second names
the token of the first by its token slot. What a wave needs of all these steps, and what its answer changes, is computed
column by column. Python runs for one run alone when it begins, when it goes on to its next page, and when it ends.

A run goes on to a page before a step needs it. If the page has no memory yet, it is bound then; a run that finds none
waits as an allocation does, and takes no step meanwhile.

A step in flight may outlive its run: so a row is known by its number and its serial number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from pie_control.calls.adapters import NO_ADAPTER
from pie_control.calls.columns import EmbedColumns, ForwardColumns, Numbers, SampleColumns
from pie_control.calls.fused.runs import RunCommand
from pie_control.calls.sampler import Bias, param_columns, param_rows
from pie_control.errors import CallError
from pie_control.resources.holdings import Holdings
from pie_control.resources.kinds import PAGES
from pie_control.resources.memory import Memory
from pie_control.resources.tables.contexts import NO_STATE
from pie_control.tenants.tenant import ServiceClass

from ..turn import RunTokens, StepAnswers
from .matchers import StepMatchers
from .rows import ROW, fields_of
from .run import DecodeRun

MOST_IN_FLIGHT = 2
"""Steps of one run: with more, a stop token would waste more of them, and the worker has enough to do. Where texts have
states it is 1: a state that has read the token behind a stop token would be of no use."""
INITIAL_ROWS = 64
DRAWS = 64
"""Random numbers of a run that are in the table at a time."""
NO_TOKEN = -1

Rows = NDArray[np.int64]
NO_ROWS: Rows = np.zeros(0, np.int64)
Q = TypeVar("Q")


class TakenSteps(NamedTuple):
    """The steps that a wave takes; the first `fresh` are first steps, which only sample. `serials`, `meters`: of the
    rows."""

    rows: Rows
    serials: NDArray[np.int64]
    meters: NDArray[np.int64]
    fresh: int


class Columns(NamedTuple):
    """What steps add to a wave."""

    embeds: EmbedColumns
    forwards: ForwardColumns
    samples: SampleColumns


class Runs(Generic[Q]):
    """All runs that are under way."""

    def __init__(self, page_size: int, has_states: bool = False) -> None:
        self._page_size = page_size
        self._has_states = has_states
        self._most_in_flight = 1 if has_states else MOST_IN_FLIGHT
        self._table = np.zeros(INITIAL_ROWS, ROW)
        self._fields = fields_of(self._table)
        self._draws = np.zeros((INITIAL_ROWS, DRAWS))
        self._stops = np.full((INITIAL_ROWS, 1), NO_TOKEN, np.int32)
        self._runs: list[DecodeRun[Q] | None] = [None] * INITIAL_ROWS
        self._pages: list[Numbers] = [np.zeros(0, np.int32)] * INITIAL_ROWS
        self._free = list(range(INITIAL_ROWS - 1, -1, -1))
        self._serial = 0
        self._matchers = StepMatchers()
        self._special = 0  # runs with a bias, or that ask for log-probabilities
        self._ready: Rows | None = None  # rows that are ready, if they were looked for since the last change
        self._ready_classes: list[int] | None = None  # how many of each class, likewise
        self._plain: tuple[bytes, SampleColumns] | None = None  # rows that sample as in their last step, and how
        self.live = 0

    # ---- beginning and end ----

    def begin(self, queue: Q, command: RunCommand, holdings: Holdings, meter: int = 0) -> DecodeRun[Q]:
        """A run whose first step the wave under formation takes. `meter`: number of what counts for it. Nothing has
        happened if it raises an error."""
        if not self._free:
            self._grow()
        row = self._free[-1]
        run = DecodeRun(queue, command, holdings, self._page_size, row)
        one = np.zeros(1, ROW)
        one["serial"], one["owner"], one["future"] = self._serial + 1, command.owner, command.future
        one["service_class"], one["meter"] = holdings.standing.service_class, meter
        one["steps"], one["position"] = command.steps, command.position
        one["embed"] = holdings.embeds.physical[command.embed]
        if command.steps > 1:  # else nothing is put there, and it may have no memory yet
            one["input"] = holdings.embeds.physical[command.input]
        if command.context.states is not None:
            physical = holdings.states.physical
            places = [NO_STATE if state == NO_STATE else physical[state] for state in command.context.states]
            one["begins"], one["leaves"] = places
        one["params"] = param_rows((command.params,))
        one["random"], one["masked"] = bool(command.uniform), command.allowed is not None
        one["listed"], one["adapter"], one["matched"] = run.listed, command.adapter, command.constraint is not None
        self._set_stops(row, command.stop)
        self._table[row : row + 1] = one
        self._runs[self._free.pop()] = run
        self._special += run.is_special
        self._plain = None
        self._serial += 1
        self.live += 1
        return run

    def end(self, run: DecodeRun[Q]) -> int:
        """A run takes no further step, and nothing comes of those in flight. The wave that took its last step."""
        one = self._table[run.row]
        wave = int(one["wave"])
        if one["matched"]:
            self._matchers.end(int(one["serial"]))
        one["serial"], one["ready"] = 0, False
        self._ready = self._ready_classes = self._plain = None
        self._special -= run.is_special
        self._runs[run.row] = None
        self._free.append(run.row)
        self.live -= 1
        run.end()
        return wave

    def _set_stops(self, row: int, stop: Sequence[int]) -> None:
        missing = len(stop) - self._stops.shape[1]
        if missing > 0:
            self._stops = np.pad(self._stops, ((0, 0), (0, missing)), constant_values=NO_TOKEN)
        self._stops[row] = NO_TOKEN
        self._stops[row, : len(stop)] = stop

    def _grow(self) -> None:
        rows = len(self._table)
        self._table = np.concatenate([self._table, np.zeros(rows, ROW)])
        self._fields = fields_of(self._table)
        self._draws = np.concatenate([self._draws, np.zeros_like(self._draws)])
        self._stops = np.concatenate([self._stops, np.full_like(self._stops, NO_TOKEN)])
        self._runs += [None] * rows
        self._pages += [np.zeros(0, np.int32)] * rows
        self._free = list(range(2 * rows - 1, rows - 1, -1))

    # ---- who is ready ----

    def ready_rows(self) -> Rows:
        """Rows of the runs that can take a step."""
        if self._ready is None:
            (self._ready,) = self._fields["ready"].nonzero()
        return self._ready

    def ready(self, meters: Sequence[int] | None = None) -> list[DecodeRun[Q]]:
        """The runs that can take a step; `meters`: those for which one of these counts."""
        rows = self.ready_rows()
        if meters is not None:
            rows = rows[np.isin(self._fields["meter"][rows], meters)]
        return [run for row in rows.tolist() if (run := self._runs[row]) is not None]

    def ready_by_class(self, wave: int = -1) -> list[int]:
        """How many can take a step; `wave`: of those that took one in this wave or a later one."""
        if not self.live:
            return [0] * len(ServiceClass)
        if wave < 0 and self._ready_classes is not None:
            return self._ready_classes
        rows = self.ready_rows()
        if wave >= 0:
            rows = rows[self._fields["wave"][rows] >= wave]
        found: list[int] = np.bincount(self._fields["service_class"][rows], minlength=len(ServiceClass)).tolist()
        if wave < 0:
            self._ready_classes = found
        return found

    def hold(self, row: int, *, held: bool) -> None:
        """A run takes no step while it is held."""
        self._fields["held"][row] = held
        self._update(row)

    def owners(self, rows: Rows) -> list[int]:
        """The inferlets of these rows."""
        return list[int](self._fields["owner"][rows].tolist())

    def listed(self, rows: Rows) -> int:
        """Tokens that penalties count in the next step of these rows, at most."""
        return int(self._fields["listed"][rows].sum())

    def _update(self, rows: Rows | int) -> None:
        self._ready = self._ready_classes = None
        table = self._fields
        taken = table["taken"][rows]
        more = (taken < table["steps"][rows]) & (taken - table["known"][rows] < self._most_in_flight)
        table["ready"][rows] = more & (table["left"][rows] > 0) & ~table["held"][rows]

    # ---- pages ----

    def go_on(self, run: DecodeRun[Q], memory: Memory) -> bool:
        """Goes on to the next page; False if it has to wait for memory."""
        segment, holdings, seq = run.segments[0], run.holdings, run.command.seq
        has_memory = seq not in holdings.requests and holdings.pages.is_bound(segment.page)
        if not has_memory and not memory.try_bind(holdings, seq, PAGES, segment.page, 1):
            return False
        page = holdings.pages.physical[segment.page]
        run.go_on(page)
        self._pages[run.row] = run.keys.pages
        one = self._table[run.row]
        one["slot"] = page * self._page_size + segment.begin
        one["end"], one["left"] = segment.begin + 1, segment.end - segment.begin
        one["keys"], one["dense"] = run.keys.count, run.keys.dense
        self._update(run.row)
        return True

    # ---- steps ----

    def take(self, fresh: Sequence[int], others: Rows, slots: list[int], wave: int) -> tuple[TakenSteps, Columns]:
        """A step of each of these rows, `fresh` ones first; their tokens go to these token slots."""
        table = self._fields
        rows = np.concatenate([np.array(fresh, np.int64), others])
        embed = EmbedColumns(table["input"][others], table["token"][others])
        columns = Columns(embed, self._forward(others), self._sample(rows, slots))
        table["token"][rows] = -1 - np.array(slots)
        for name, change in (("slot", 1), ("end", 1), ("position", 1), ("left", -1)):
            table[name][others] += change
        if self._has_states:
            table["begins"][others] = table["leaves"][others]
        table["taken"][rows] += 1
        table["wave"][rows] = wave
        self._update(rows)
        return TakenSteps(rows, table["serial"][rows], table["meter"][rows], len(fresh)), columns

    def at_page_end(self, taken: TakenSteps) -> list[DecodeRun[Q]]:
        """The runs among these that have to go on to another page (`go_on`) before their next step."""
        table, rows = self._fields, taken.rows
        ends = rows[(table["left"][rows] == 0) & (table["taken"][rows] < table["steps"][rows])]
        return [run for row in ends.tolist() if (run := self._runs[row]) is not None]

    def _forward(self, rows: Rows) -> ForwardColumns:
        table = self._fields
        counts = table["keys"][rows]
        keys = [self._pages[row] for row in rows.tolist()]
        pages = np.concatenate(keys) if keys else np.zeros(0, np.int32)
        begins, ends = np.zeros(len(pages), np.int32), np.full(len(pages), self._page_size, np.int32)
        dense = table["dense"][rows]
        last = counts.cumsum()
        for place in (~dense).nonzero()[0].tolist():
            run = self._runs[rows[place]]
            assert run is not None
            own = slice(last[place] - counts[place], last[place])
            begins[own], ends[own] = run.keys.begins, run.keys.ends
        ends[last - 1] = table["end"][rows]
        adapters = table["adapter"][rows]
        return ForwardColumns(
            table["input"][rows],
            table["position"][rows],
            table["slot"][rows],
            table["embed"][rows],
            counts,
            pages,
            begins,
            ends,
            dense,
            adapters if (adapters != NO_ADAPTER).any() else None,
            (table["begins"][rows], table["leaves"][rows]) if self._has_states else None,
        )

    def _sample(self, rows: Rows, slots: list[int]) -> SampleColumns:
        """How rows sample changes from step to step only if one draws numbers, or what it may choose depends on what
        it has written."""
        same = rows.tobytes()
        if self._plain is not None and self._plain[0] == same and not self._matchers:
            return self._plain[1]._replace(token_slots=slots)
        columns, table = self._sample_anew(rows, slots), self._fields
        changes = any(table[name][rows].any() for name in ("random", "listed", "masked", "matched"))
        self._plain = None if changes or columns.grammars is not None else (same, columns)
        return columns

    def _sample_anew(self, rows: Rows, slots: list[int]) -> SampleColumns:
        table = self._fields
        counts, recent = self._recent(rows)
        allowed_rows = np.full(len(rows), -1, np.int32)
        (masked,) = table["masked"][rows].nonzero()
        allowed_rows[masked] = np.arange(len(masked))
        masks = [self._command(row).allowed or b"" for row in rows[masked].tolist()]
        return SampleColumns(
            table["embed"][rows],
            slots,
            param_columns(table["params"][rows]),
            self._uniform(rows),
            counts,
            recent,
            allowed_rows,
            masks,
            self._special_of(rows) if self._special else None,
            self._matchers.columns(
                table["serial"][rows] * table["matched"][rows],
                table["taken"][rows],
                lambda place: self._command(rows[place]).constraint,
            ),
        )

    def _special_of(self, rows: Rows) -> list[tuple[Bias | None, int]]:
        """Bias and alternatives of each row."""
        return [((one := self._command(row)).bias, one.alternatives) for row in rows.tolist()]

    def _uniform(self, rows: Rows) -> NDArray[np.float64]:
        table = self._fields
        places = table["taken"][rows] % DRAWS
        for row in rows[(places == 0) & table["random"][rows]].tolist():
            run, taken = self._runs[row], table["taken"][row]
            assert run is not None
            some = run.uniform[taken : taken + DRAWS]
            self._draws[row, : len(some)] = some
        return np.where(table["random"][rows], self._draws[rows, places], 0.0)

    def _recent(self, rows: Rows) -> tuple[Numbers, Numbers]:
        """Tokens that penalties count: how many of each row, and which."""
        table = self._fields
        counts, parts = np.zeros(len(rows), np.int32), [np.zeros(0, np.int32)]
        for place in table["listed"][rows].nonzero()[0].tolist():
            row = rows[place]
            run, taken = self._runs[row], int(table["taken"][row])
            assert run is not None
            if taken:
                run.note(taken - 1, table["token"][row])
            parts.append(run.recent(taken))
            counts[place] = len(parts[-1])
        return counts, np.concatenate(parts)

    def _command(self, row: int) -> RunCommand:
        run = self._runs[row]
        assert run is not None
        return run.command

    # ---- tokens ----

    def lost(self, taken: TakenSteps) -> TakenSteps:
        """Those of steps whose runs have ended meanwhile: nothing comes of them."""
        lost = self._fields["serial"][taken.rows] != taken.serials
        return TakenSteps(taken.rows[lost], taken.serials[lost], taken.meters[lost], 0)

    def answered(self, taken: TakenSteps, answers: StepAnswers) -> tuple[RunTokens, list[DecodeRun[Q]]]:
        """A wave was answered: the tokens of runs that go on or end with them, and those that end."""
        table, errors, scores = self._fields, answers.errors, answers.scores
        alive = (table["serial"][taken.rows] == taken.serials).nonzero()[0]
        rows, tokens = taken.rows[alive], answers.tokens[alive].astype(np.int32)
        table["known"][rows] = known = table["known"][rows] + 1
        settled = known == table["taken"][rows]
        table["token"][rows[settled]] = tokens[settled]
        for place in table["listed"][rows].nonzero()[0].tolist():
            run = self._runs[rows[place]]
            assert run is not None
            run.note(int(known[place]) - 1, int(tokens[place]))
        stopped = answers.over[alive] | (self._stops[rows] == tokens[:, None]).any(1)
        over = (known == table["steps"][rows]) | stopped
        failed: dict[int, CallError] = {}
        if errors:
            failed = {place: errors[step] for place, step in enumerate(alive.tolist()) if step in errors}
            over[list(failed)], tokens[list(failed)] = True, NO_TOKEN
        self._update(rows)
        ended = [run for row in rows[over].tolist() if (run := self._runs[row]) is not None]
        owners, futures = table["owner"][rows].tolist(), table["future"][rows].tolist()
        kept = {place: scores[step] for place, step in enumerate(alive.tolist()) if step in scores} if scores else {}
        return RunTokens(owners, futures, tokens.tolist(), over.tolist(), failed, kept), ended
