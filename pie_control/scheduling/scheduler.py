"""The scheduler of one worker: calls of inferlets go in, waves come out; answers go in, completions come out.

Theory of operation. An `Account` (one for each inferlet) validates calls and appends commands to queues. `next_wave`
takes what can run together out of the queues; `wave_done` maps the worker's answer back to futures. Every accepted
future is answered exactly once: by its wave, by `close`, or by `worker_lost`. Waves are answered in the order in which
they were sent.

No socket, clock or thread: `now` (seconds, any origin) is an argument, and nothing happens between calls. The caller,
in turn: runs all inferlets until each waits; calls `next_wave` until it returns None, sending each; hands out
`take_completions`; closes the accounts of `take_evictions` and, if there were some, begins again (there is room now);
then waits for an answer of the worker, a new inferlet, or `next_deadline`.
"""

from __future__ import annotations

from collections import deque

from pie_control.errors import CallError, WorkerError
from pie_control.resources.contention import ContentionPolicy, Eviction, FirstComeFirstServed
from pie_control.resources.quotas import Quota
from pie_inference.protocol import ModelDescription, RunWave, WaveDone

from .account import Account, Shared
from .memory import Memory
from .policies import Adaptive, DispatchPolicy, DispatchState
from .queues import Backlog
from .results import answer_future, check_answer, deliver, free_token_slots
from .statistics import Counts, SchedulerStatistics
from .values import Completion, Done, Failed, Value, again
from .waves import Wave, WaveBuilder


class Scheduler:
    """Schedules the commands of all inferlets on one model of one worker."""

    def __init__(
        self,
        model: ModelDescription,
        policy: DispatchPolicy | None = None,
        contention: ContentionPolicy | None = None,
        quota: Quota | None = None,
    ) -> None:
        self.model = model
        self._policy = policy or Adaptive()
        self._backlog = Backlog()
        self._memory = Memory(model, contention or FirstComeFirstServed())
        self._shared = Shared(model, quota or Quota(), self._backlog, self._memory)
        self._in_flight: deque[Wave] = deque()
        self._completions: list[Completion] = []
        self._lost: WorkerError | None = None
        self._asked = float("-inf")  # when next_wave was called last
        self._counts = Counts()

    # ---- inferlets ----

    def open(self, owner: int, created: float) -> Account:
        """An account for an inferlet; `created` (seconds) says who came first when memory runs out."""
        if self._lost is not None:
            raise again(self._lost)
        assert owner not in self._memory.accounts, f"inferlet {owner} has an account"
        account = Account(owner, created, self._shared)
        self._memory.accounts[owner] = account
        return account

    def close(self, account: Account, reason: CallError) -> tuple[Completion, ...]:
        """Ends an inferlet: answers its outstanding futures with `reason` and frees all that it held. Idempotent."""
        if self._memory.accounts.get(account.owner) is not account:
            return ()
        account.ended = account.ended or reason
        for queue in account.queues.values():
            self._backlog.drop(queue)
        account.queues.clear()
        self._memory.free_all(account)
        del self._memory.accounts[account.owner]
        return _fail_futures(account, reason)

    def take_evictions(self) -> tuple[Eviction, ...]:
        """Inferlets that have to end for lack of memory, each once; the caller closes their accounts."""
        evictions = tuple(self._memory.evictions)
        self._memory.evictions.clear()
        return evictions

    # ---- waves ----

    def next_wave(self, now: float) -> RunWave | None:
        """The next wave to send, or None if nothing is to be sent now."""
        self._asked = now
        if not self._backlog.queues or self._lost is not None:
            return None
        if not self._policy.should_send(self._state(), now):
            return None
        wave = self._form()
        if wave is None:
            return None
        self._backlog.since = now
        self._in_flight.append(wave)
        return RunWave(wave.number, self.model.name, wave.build())

    def _form(self) -> Wave | None:
        """Tries again while something takes effect in the control layer alone: other queues may have waited for it."""
        while True:
            self._memory.begin()
            builder = WaveBuilder(self.model, self._backlog, self._memory, self._memory.wave, self._policy.max_commands)
            wave = builder.take_all()
            self._memory.make_room()
            self._settle(builder, wave)
            if wave is not None or not builder.progress:
                return wave

    def _settle(self, builder: WaveBuilder, wave: Wave | None) -> None:
        if wave is not None:
            self._memory.wave_sent()
            self._counts.add(wave)
        elif not self._in_flight:
            self._memory.all_completed()
        for queue, command in builder.reached:
            assert command.future is not None
            self._reach(queue.account, queue.last_wave, command.future, wave)

    def _reach(self, account: Account, last_wave: int, future: int, formed: Wave | None) -> None:
        """A synchronize took its turn: it is done with the last wave that its queue is in."""
        for wave in (*self._in_flight, *([formed] if formed else [])):
            if wave.number == last_wave:
                wave.syncs.append((account, future))
                return
        self._completions.extend(answer_future(account, future, _sync_value(account)))

    def take_completions(self) -> tuple[Completion, ...]:
        """Futures that `next_wave` found done without the worker (`synchronize` on a queue with nothing in flight)."""
        completions = tuple(self._completions)
        self._completions.clear()
        return completions

    def next_deadline(self) -> float | None:
        """When to call `next_wave` though nothing happened."""
        if not self._backlog.queues:
            return None
        deadline = self._policy.deadline(self._state())
        return deadline if deadline is not None and deadline > self._asked else None

    def _state(self) -> DispatchState:
        backlog = self._backlog
        return DispatchState(
            len(backlog.queues), backlog.commands, backlog.since, len(self._in_flight), self._expected()
        )

    def _expected(self) -> int:
        """Inferlets that the waves in flight will wake, as far as they have issued nothing further."""
        waves = self._in_flight
        if not waves:
            return 0
        accounts = waves[0].accounts if len(waves) == 1 else set().union(*(wave.accounts for wave in waves))
        return sum(1 for account in accounts if not account.waiting and account.ended is None)

    # ---- answers ----

    def wave_done(self, done: WaveDone, now: float) -> tuple[Completion, ...]:
        """Answers the futures of the oldest wave in flight. Raises WorkerError, and changes nothing, if the answer
        does not fit it: the caller restarts the worker."""
        wave = self._in_flight[0] if self._in_flight else None
        if wave is None or wave.number != done.wave or len(wave.batches) != len(done.results):
            raise WorkerError(f"the worker answered wave {done.wave}, which is not the oldest in flight, or in part")
        failed: dict[int, dict[int, str]] = {number: {} for number in range(len(wave.batches))}
        for failure in done.failures:
            failed.setdefault(failure.batch, {})[failure.command] = failure.message
        if len(failed) > len(wave.batches):
            raise WorkerError(f"the worker answered that a batch failed that wave {done.wave} has not")
        answers = list(zip(wave.batches, done.results, failed.values(), strict=True))
        for answer in answers:
            check_answer(*answer)
        completions: list[Completion] = []
        for batch, result, wrong in answers:
            completions.extend(deliver(batch, result, wrong))
            free_token_slots(batch, self._memory.tokens)
        for account, future in wave.syncs:
            completions.extend(answer_future(account, future, _sync_value(account)))
        self._retire(wave, done.seconds)
        return tuple(completions)

    def _retire(self, wave: Wave, seconds: float) -> None:
        self._in_flight.popleft()
        self._counts.seconds += seconds
        self._memory.wave_completed(wave.number)
        if not self._in_flight:
            self._memory.all_completed()

    def worker_lost(self, message: str) -> tuple[Completion, ...]:
        """The worker is gone, and with it what inferlets held: answers everything with WorkerError and closes all
        accounts. The scheduler is of no further use; make a new one for the next worker."""
        self._lost = WorkerError(f"the inference worker was lost: {message}")
        completions: list[Completion] = []
        for account in list(self._memory.accounts.values()):
            completions.extend(self.close(account, self._lost))
        self._in_flight.clear()
        return tuple(completions)

    # ---- inspection ----

    def statistics(self) -> SchedulerStatistics:
        counts, memory = self._counts, self._memory
        return SchedulerStatistics(
            inferlets=len(memory.accounts),
            queues_waiting=len(self._backlog.queues),
            commands_waiting=self._backlog.commands,
            waves_in_flight=len(self._in_flight),
            waves=counts.waves,
            commands=dict(counts.commands),
            batches=dict(counts.batches),
            input_tokens=counts.input_tokens,
            worker_seconds=counts.seconds,
            pages=memory.pages.usage(),
            embeds=memory.embeds.usage(),
            token_slots=memory.tokens.usage(),
            evictions=memory.evicted,
        )

    def check_integrity(self) -> None:
        """Asserts the invariants of pools, queues and counters."""
        self._memory.check_integrity()
        self._backlog.check_integrity()
        for account in self._memory.accounts.values():
            account.check_integrity()


def _sync_value(account: Account) -> Value:
    return Done() if account.ended is None else Failed(account.ended)


def _fail_futures(account: Account, reason: CallError) -> tuple[Completion, ...]:
    failed = Failed(reason)
    completions = tuple(Completion(account.owner, future, failed) for future in sorted(account.futures))
    account.futures.clear()
    return completions
