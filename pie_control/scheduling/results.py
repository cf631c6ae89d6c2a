"""Answers of the worker, back to the futures that they belong to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import cast

import numpy as np

from pie_control.errors import WorkerError
from pie_control.resources.pool import Pool
from pie_inference.protocol import GetLogprobsResult, GetNextDistResult, Result, SampleResult

from .account import Account
from .batches import DistBatch, SampleBatch, ScoreBatch
from .commands import Command
from .forward_batch import ForwardBatch
from .values import Completion, Dist, Failed, Logprobs, TokenValue, Value
from .waves import AnyBatch


def check_answer(batch: AnyBatch, result: Result | None, failed: Mapping[int, str]) -> None:
    """Raises WorkerError if an answer does not fit its batch; called for a whole wave before any `deliver`. `failed`:
    what is wrong with the commands that failed, by their places in the batch."""
    commands = _sequence(batch)
    if not all(0 <= place < len(commands) for place in failed):
        raise WorkerError(f"the worker answered that {batch.name} failed for a command that it has not")
    if result is None and len(failed) == len(commands):
        return
    expected, got = _rows(batch), -1
    match result:
        case SampleResult() if isinstance(batch, SampleBatch):
            got = len(result.tokens)
        case GetNextDistResult() if isinstance(batch, DistBatch) and len(result.indptr) == len(result.rest) + 1:
            got = len(result.rest)
        case GetLogprobsResult() if isinstance(batch, ScoreBatch):
            got = len(result.logprobs)
        case None if not isinstance(batch, SampleBatch | DistBatch | ScoreBatch):
            return
    if got != expected:
        answer = type(result).__name__
        raise WorkerError(f"the worker answered {answer} to {batch.name} with {expected} rows: are versions mixed?")


def _rows(batch: AnyBatch) -> int:
    if isinstance(batch, ScoreBatch):
        return sum(len(command.tokens) for command in batch.commands)
    return len(batch.commands)


def _sequence(batch: AnyBatch) -> Sequence[Command]:
    """The commands in the order in which the worker got them."""
    return batch.sequences if isinstance(batch, ForwardBatch) else batch.commands


def deliver(batch: AnyBatch, result: Result | None, failed: Mapping[int, str]) -> list[Completion]:
    """Completions of one batch, whose answer was checked. Failures come first: what an inferlet that they end is still
    to be answered is answered with them."""
    completions = [answer for place, message in failed.items() for answer in _fail(_sequence(batch)[place], message)]
    match result:
        case SampleResult():
            completions += _deliver_tokens(cast(SampleBatch, batch), result)
        case GetNextDistResult():
            completions += _deliver_dists(cast(DistBatch, batch), result)
        case GetLogprobsResult():
            completions += _deliver_logprobs(cast(ScoreBatch, batch), result)
    return completions


def _deliver_tokens(batch: SampleBatch, result: SampleResult) -> list[Completion]:
    completions: list[Completion] = []
    for command, token in zip(batch.commands, result.tokens.tolist(), strict=True):
        if command.source.error is not None:
            continue
        command.source.value = token
        account, future = command.account, cast(int, command.future)
        if future in account.futures:
            account.remember(future)
            completions.extend(answer_future(account, future, TokenValue(token)))
    return completions


def _deliver_dists(batch: DistBatch, result: GetNextDistResult) -> list[Completion]:
    ends = result.indptr.tolist()
    tokens = result.tokens.astype(np.int32, copy=False)
    probabilities = result.probabilities.astype(np.float32, copy=False)
    rows = zip(ends[:-1], ends[1:], result.rest.tolist(), strict=True)
    values = [Dist(tokens[begin:end], probabilities[begin:end], rest) for begin, end, rest in rows]
    return _answer(batch.commands, values)


def _deliver_logprobs(batch: ScoreBatch, result: GetLogprobsResult) -> list[Completion]:
    ends = np.cumsum([0, *(len(command.tokens) for command in batch.commands)]).tolist()
    logprobs = result.logprobs.astype(np.float32, copy=False)
    values = [Logprobs(logprobs[begin:end]) for begin, end in pairwise(ends)]
    return _answer(batch.commands, values)


def _answer(commands: Sequence[Command], values: Sequence[Value]) -> list[Completion]:
    pairs = zip(commands, values, strict=True)
    return [answer for command, value in pairs for answer in answer_future(command.account, command.future, value)]


def answer_future(account: Account, future: int | None, value: Value) -> Iterator[Completion]:
    """The completion, unless the future was answered before (its inferlet was closed)."""
    if future is not None and future in account.futures:
        account.futures.remove(future)
        yield Completion(account.owner, future, value if account.ended is None else Failed(account.ended))


def _fail(command: Command, message: str) -> Iterator[Completion]:
    error = WorkerError(f"the worker could not run the command: {message}")
    yield from answer_future(command.account, command.future, Failed(error))
    if _has_consequences(command, error):
        yield from break_account(command.account, error)


def _has_consequences(command: Command, error: WorkerError) -> bool:
    """Whether the inferlet relies on a state that is wrong now; a failed output that no command names is none."""
    if command.future is None:
        return True
    source = getattr(command, "source", None)
    if source is None:
        return False
    source.error = error
    command.account.remember(command.future)
    return bool(source.named)


def break_account(account: Account, error: WorkerError) -> Iterator[Completion]:
    """The inferlet cannot go on; told once."""
    if account.ended is None:
        account.ended = error
        yield Completion(account.owner, None, Failed(error))


def free_token_slots(batch: AnyBatch, pool: Pool) -> None:
    """Frees the slots of a wave whose tokens are known: those formed from now on carry the values, and those in flight
    run before a later one can write the slots."""
    if isinstance(batch, SampleBatch):
        pool.release(batch.token_slots(), None)
