"""The scheduler of one worker: events go in, and what has to be done comes out.

Theory of operation. Address spaces accept calls and hand on commands; they come in as events, with the worker's answers
and what happens to inferlets. `turn` takes events in order and returns a frozen `Turn`: waves to send, futures that are
answered, inferlets that must end. At the end of each turn waves are formed, if the policy says so. It waits for guests
that are about to issue something (guests.py), where that pays. Every accepted future is answered exactly once, unless
its inferlet ends before. Waves are answered in the order in which they were sent.

How to drive it: take a turn whenever something has come, with all that has come, in order: answers of the worker, what
hosts sent, and `HostQuiet` behind what a host sent when all its inferlets wait; and at the deadline of the last turn,
whatever has come. Send the waves first (`turn` hands on each as soon as it is formed: the worker may idle meanwhile),
then tell hosts the results. So: results, turn, hosts run what they woke, turn.
No clock or thread: `now` (seconds, any origin) is an argument, and nothing happens between turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from pie_control.calls.exports.sharing import Fetch
from pie_control.calls.kind import CloseQueue, Command, EndRun, OpenQueue, Prioritize, Release, Stage
from pie_control.calls.values import Completion, Done, Value
from pie_control.errors import CallError, Exhausted, NotFound, QuotaExceeded, WorkerError
from pie_control.ids import Owner
from pie_control.resources.contention import Action, ContentionPolicy, End, FirstComeFirstServed, Shed
from pie_control.resources.holdings import Forgotten
from pie_control.resources.memory import Memory
from pie_control.tenants.meters import Meters
from pie_control.tenants.tenant import Standing
from pie_inference.protocol import DropAdapter, ModelDescription, RunWave, WaveDone

from .account import Account, CommandQueue
from .answers import Answers, Wave, in_place, read_answers, read_steps, take_progress
from .backlog import Backlog
from .decoding.runs import TakenSteps
from .forming.chunks import Chunks
from .forming.state import dispatch_state
from .forming.waves import WaveBuilder
from .guests import Guests
from .local import LocalCommands
from .policies import Adaptive, DispatchPolicy, DispatchState
from .statistics import Counts, Lately, LinearFit, SchedulerStatistics
from .turn import Closed, Ending, Event, HostQuiet, Opened, Reason, RunTokens, Turn, WorkerLost, fault_of, join_tokens


class Scheduler:
    """Schedules the commands of all inferlets on one model of one worker."""

    def __init__(
        self,
        model: ModelDescription,
        policy: DispatchPolicy | None = None,
        contention: ContentionPolicy | None = None,
        meters: Meters | None = None,
    ) -> None:
        self.model = model
        self._policy = policy or Adaptive()
        self._backlog = Backlog(model.page_size, model.max_batch_tokens, meters or Meters(), model.num_states > 0)
        self._memory = Memory(model, contention or FirstComeFirstServed())
        self.runs, self.memory = self._backlog.runs, self._memory  # for those who look on
        self._accounts: dict[Owner, Account] = {}
        self._in_flight: deque[Wave] = deque()
        self._lost = False
        self._now = float("-inf")  # of the last turn
        self.counts = Counts()
        self._wave_seconds = Lately()
        self._times = LinearFit()  # seconds of a wave over its tokens
        self._chunks = Chunks()
        self._answered = float("-inf")  # when the last wave was
        self._guests = Guests()
        self._has_answer = False  # in this turn
        self._evictions = 0
        self._waves: list[RunWave] = []
        self._completions: list[Completion] = []
        self._endings: list[Ending] = []
        self._run_tokens: list[RunTokens] = []
        self._moved: dict[Account, None] = {}  # their address spaces will hear of progress
        self._local = LocalCommands(self._memory, self._accounts, self._backlog.searches, self._answer)
        self._takers: dict[type, Callable[[Any], None]] = {
            Opened: self._open,
            Closed: self._forget,
            OpenQueue: self._open_queue,
            CloseQueue: self._close_queue,
            Prioritize: self._prioritize,
            Release: self._free,
            EndRun: self._cancel_run,
            **self._local.takers,
            Forgotten: self._forget_tokens,
            WaveDone: self._wave_done,
            WorkerLost: self._worker_lost,
            HostQuiet: lambda event: self._guests.quiet(event.host, event.heard),
            DropAdapter: lambda event: self._memory.drop_adapter(event.number),
        }

    def turn(self, now: float, events: Iterable[Event], send: Callable[[RunWave], None] = lambda _: None) -> Turn:
        """Takes events in order; one that cannot be ends its inferlet, and nobody else. `send` gets a wave before the
        next one is formed. Raises WorkerError if an answer of the worker does not fit: it must be restarted."""
        self._now = now
        self._backlog.turn_begins(now)
        self._guests.turn_begins(now)
        takers, enqueue = self._takers, self._enqueue
        for event in events:
            try:
                takers.get(type(event), enqueue)(event)
            except Exception as error:
                if (account := self._accounts.get(getattr(event, "owner", 0))) is None:
                    raise
                self._end(account, Reason.FAILED, fault_of(error))
        self._form_waves(send)
        return self._end_turn()

    def _end_turn(self) -> Turn:
        told = self._has_answer or self._completions or self._endings
        progress = take_progress(self._moved, self._accounts, at_once=bool(told or not self._in_flight))
        self._has_answer = False
        turn = Turn(
            tuple(self._waves),
            tuple(self._completions),
            tuple(self._endings),
            tuple(progress),
            self._deadline(),
            self._guests.turn,
            join_tokens(self._run_tokens),
        )
        for gathered in (self._waves, self._completions, self._endings, self._run_tokens):
            gathered.clear()
        return turn

    def _deadline(self) -> float | None:
        policy = self._policy.deadline(self._state()) if any(self._backlog.all_ready()) else None
        asked = policy is not None and policy <= self._now
        times = None if asked else policy, self._backlog.next(self._now), self._local.next(self._now)
        return min((one for one in times if one is not None), default=None)

    # ---- what arrives ----

    def _open(self, event: Opened) -> None:
        holdings = self._memory.open(event.owner, event.created, event.standing)
        self._accounts[event.owner] = self._backlog.open(event.owner, holdings, event.standing, event.host)

    def _open_queue(self, note: OpenQueue) -> None:
        if account := self._accounts.get(note.owner):
            account.open_queue(note.queue)

    def _close_queue(self, note: CloseQueue) -> None:
        if queue := self._find_queue(note):
            queue.close()

    def _prioritize(self, note: Prioritize) -> None:
        if queue := self._find_queue(note):
            self._backlog.prioritize(queue, note.priority)

    def _find_queue(self, note: Command | CloseQueue | Prioritize) -> CommandQueue | None:
        """The queue that is named; None: its inferlet has ended. Raises NotFound: what it relies on has been lost."""
        account = self._accounts.get(note.owner)
        if account is not None and note.queue not in account.queues:
            raise NotFound(f"queue {note.queue} is not known to the scheduler: this is a defect of the server")
        return account.queues[note.queue] if account is not None else None

    def _free(self, note: Release) -> None:
        if account := self._accounts.get(note.owner):
            account.addresses_freed(note.freed)
            self._backlog.unblock(account)
            account.take_back(self._memory, account.oldest_waiting)
            self._moved[account] = None

    def _forget_tokens(self, note: Forgotten) -> None:
        if account := self._accounts.get(note.owner):
            account.tokens_forgotten(note)

    def _enqueue(self, command: Command) -> None:
        account = self._accounts.get(command.owner)
        if account is None:
            return  # its inferlet was ended while the command was on its way
        self._guests.issued(account)
        account.command_arrived(command)
        if queue := self._find_queue(command):
            self._local.announce(account, command)
            self._backlog.add(queue, command)

    def _cancel_run(self, note: EndRun) -> None:
        """Its future is forgotten."""
        account = self._accounts.get(note.owner)
        if account is None or not account.answer(note.future):
            return  # it is over
        queue = account.queues[note.queue]
        if queue.run is not None and queue.run.command.future == note.future:
            self._end_run(queue)
        else:
            account.cancel(note.future)

    def _end_run(self, queue: CommandQueue) -> None:
        account, run = queue.account, queue.run
        assert run is not None
        self._memory.cancel(account.holdings, run.command.seq)
        self._backlog.end_run(queue)
        account.take_back(self._memory, account.oldest_waiting)
        self._moved[account] = None

    # ---- ends ----

    def _close(self, owner: Owner) -> Account | None:
        """Forgets an inferlet and frees all that it held. Nothing happens if it is forgotten already."""
        account = self._accounts.pop(owner, None)
        if account is not None:
            self._guests.gone(account)
            self._backlog.drop(account)
            self._memory.close(owner)
            self._local.closed(owner)
        return account

    def _forget(self, event: Closed) -> None:
        if account := self._accounts.get(event.owner):
            self._local.last_offers(account, self._backlog, tuple(self._in_flight), self._now)
        self._close(event.owner)

    def _end(self, account: Account, reason: Reason, error: CallError) -> None:
        """Closes an account for a reason that its inferlet must hear."""
        if self._close(account.owner) is not None:
            self._endings.append(Ending(account.owner, reason, error))

    def _worker_lost(self, event: WorkerLost) -> None:
        """The scheduler is of no further use; the next worker gets a new one."""
        self._lost = True
        error = WorkerError(event.message)
        for account in list(self._accounts.values()):
            self._end(account, Reason.LOST, error)
        self._in_flight.clear()

    # ---- forming waves ----

    def _form_waves(self, send: Callable[[RunWave], None]) -> None:
        """Forms waves as long as there is one to send. What takes effect in the control layer waits for no policy."""
        while not self._lost:
            self._take_local()
            self._end_over_today()
            if not any(self._backlog.all_ready()):
                return
            state = self._state()
            if not self._policy.should_send(state, self._now):
                return
            builder = self._begin()
            wave = builder.take_all(self._policy.portion(state))
            self._settle(builder, wave)
            if wave is None and builder.taking.progress:
                continue
            if wave is None:
                return
            wave.goes(self._now)
            self._backlog.wave_sent()
            self._in_flight.append(wave)
            self._guests.sent(wave.accounts)
            self._waves.append(RunWave(wave.number, self.model.name, wave.build()))
            send(self._waves[-1])

    def _end_over_today(self) -> None:
        """Ends who wants to go on, and may not before the next day."""
        for queue, reason in self._backlog.held.over_today() if self._backlog.held else ():
            self._end(queue.account, Reason.EXCEEDED, QuotaExceeded(reason))

    def _take_local(self) -> None:
        """Tries again while a command takes effect, or an inferlet was ended: others may have waited for it."""
        self._local.look_again()
        while self._backlog.goes_on_locally:
            builder = self._begin()
            builder.take_local()
            if not (self._settle(builder, None) or builder.taking.progress):
                return

    def _begin(self) -> WaveBuilder:
        for owner, seq in self._memory.begin():
            self._backlog.granted(owner, seq)
        most = self._chunks.most(self._times)
        return WaveBuilder(self.model, self._backlog, self._memory, self._policy.max_commands, most)

    def _act(self, action: Action) -> bool:
        """Does what the contention policy says; whether something comes back by it."""
        if isinstance(action, End) and (account := self._accounts.get(action.owner)):
            self._evictions += 1
            self._end(account, Reason.EVICTED, Exhausted(action.message))
            return True
        return isinstance(action, Shed)

    def _settle(self, builder: WaveBuilder, wave: Wave | None) -> bool:
        """What a builder has taken takes its course; whether an inferlet was ended for lack of memory."""
        ended = [self._act(action) for action in self._memory.resolve_shortages(self._now, self._backlog.stalled)]
        if wave is not None:
            self._memory.wave_sent()
            self.counts.add(wave)
        elif not self._in_flight:
            self._memory.all_completed()
        self._moved.update(builder.visited)
        for account, error in builder.taking.failed:
            self._end(account, Reason.FAILED, fault_of(error))
        self._local.held(self._backlog.held.take_new())
        waves = (*self._in_flight, *([wave] if wave else []))
        for queue, command in builder.taking.reached:
            self._local.reached(queue, command, waves, self._now)
        return any(ended)

    def _state(self) -> DispatchState:
        oldest = self._in_flight[0] if self._in_flight else None
        times = self._times, self._wave_seconds.mean, self._answered
        return dispatch_state(self._backlog, self._guests, oldest, len(self._in_flight), *times)

    # ---- answers ----

    def _wave_done(self, done: WaveDone) -> None:
        if not self._in_flight:
            raise WorkerError(f"the worker answered wave {done.wave}, and none is in flight")
        answers = read_answers(self._in_flight[0], done)
        wave = self._in_flight.popleft()
        for batch, values, errors in answers:
            batch.completed(values, errors)
            for command, value in in_place(batch, values, errors):
                if isinstance(value, CallError):
                    self._fail(command, value, batch.call.stage)
                elif command.future is not None:
                    self._answer(command.owner, command.future, value)
        if wave.steps is not None:
            self._take_tokens(wave, wave.steps, done, answers)
        for owner, future in wave.syncs:
            self._answer(owner, future, Done())
        self.counts.answered(done.seconds)
        self._wave_seconds.add(done.seconds)
        if wave.tokens:
            self._times.add(wave.tokens, done.seconds)
            self._chunks.add(wave.tokens - wave.long)
        self._answered = self._now
        self._has_answer = True
        self._memory.wave_completed(wave.number)
        if not self._in_flight:
            self._memory.all_completed()
        self._local.answered(wave.number, self._now)

    def _take_tokens(self, wave: Wave, steps: TakenSteps, done: WaveDone, answers: Answers) -> None:
        found, ended = self._backlog.runs.answered(steps, read_steps(wave, done, answers))
        if len(found.owners) < len(steps.rows):
            self._backlog.steps_taken(self._backlog.runs.lost(steps), -1)
        self._run_tokens.append(found)
        for run in ended:
            assert run.command.future is not None
            run.queue.account.answer(run.command.future)
            self._guests.told(run.queue.account)
            self._end_run(run.queue)

    def _answer(self, owner: Owner, future: int, value: Value | CallError) -> None:
        """The completion, unless the future was answered before, by the end of its inferlet."""
        account = self._accounts.get(owner)
        if account is not None and account.answer(future):
            self._completions.append(Completion(owner, future, value))
            self._guests.told(account)

    def _fail(self, command: Command, error: CallError, stage: Stage) -> None:
        """A command failed on the worker. Its inferlet ends if it relies on what the command should have left."""
        if command.future is None or stage is not Stage.OUTPUT:
            self._local.failed(command.owner)
        account = self._accounts.get(command.owner)
        if account is None:
            return
        if account.relies_on(command, stage):
            self._end(account, Reason.FAILED, error)
        elif command.future is not None:
            self._answer(command.owner, command.future, error)

    # ---- inspection ----

    def waits_for(self, host: int) -> bool:
        """Whether an inferlet of a host was told something, and has issued nothing since: its `HostQuiet` counts."""
        return self._guests.has_hands(host)

    def kept_pages(self, standing: Standing, wanted: Fetch) -> int:
        """How many pages of a text can be imported, now or soon; of what has a name 1 or 0."""
        return self._memory.exports.soon(standing, wanted.name, wanted.text)

    def statistics(self, now: float | None = None) -> SchedulerStatistics:
        """`now`: seconds of the clock of turns; None: as of the last one."""
        return SchedulerStatistics(
            inferlets=len(self._accounts),
            **self._backlog.fields(self._now if now is None else now),
            queues_in_flight=sum(sum(wave.accounts.values()) for wave in self._in_flight),
            waves_in_flight=len(self._in_flight),
            **self.counts.fields(),
            **self._memory.fields(),
            evictions=self._evictions,
        )
