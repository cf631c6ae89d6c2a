"""What is counted of the inferlets at a model, by a clock of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from pie_control.calls.fused.verify import Verified
from pie_control.calls.values import Completion, Token
from pie_control.config import InferletLimits
from pie_control.errors import WorkerError
from pie_control.inferlets.events import Ended
from pie_control.inferlets.lifecycle import Status
from pie_control.observation import requests as module
from pie_control.observation.requests import ModelRequests, Tokens
from pie_control.programs.store import Program
from pie_control.registry.entry import Entry
from pie_control.scheduling import RunTokens
from pie_control.tenants.tenant import Standing, Tenant


def entry(number: int, tenant: str = "default") -> Entry:
    program = Program("0" * 64, "p", "", "python", 1, Path("p"))
    made = Entry(number, program, InferletLimits(), _ignore, _ignore, Standing(Tenant(tenant)))
    made.started = 10.0
    return made


def _ignore(*_: object) -> None:
    pass


def runs(owner: int, *, over: bool = False) -> RunTokens:
    return RunTokens([owner], [7], [1], [over])


def test_times_are_those_between_launch_tokens_and_end() -> None:
    one = entry(1)
    requests = ModelRequests({1: one}.get)
    for now, over in ((11.0, False), (11.25, False), (11.75, True)):
        requests.tokens_came(runs(1, over=over), now)
    requests.tokens_came(runs(1), 20.0)  # of another run: that none came between says nothing
    requests.answered([Completion(1, 8, Token(5)), Completion(1, 9, Verified(2, 5))], 21.0)
    one.runs()
    one.ends(Ended(Status.FINISHED, None, None, inferlet="i1"))
    requests.inferlet_ended(one, 30.0)
    assert (requests.first_token.count, requests.first_token.sum) == (1, 1.0)
    assert (requests.between_tokens.count, requests.between_tokens.sum) == (2, 0.75)
    assert (requests.whole.sum, requests.decode.sum) == (20.0, 10.0)
    assert requests.per_token.sum == pytest.approx(10 / 7)
    assert requests.tenants == {"default": Tokens(generated=8)}
    assert requests.ended == {"stop": 1, "abort": 0, "error": 0}


def test_runs_of_one_inferlet_are_told_apart() -> None:
    requests = ModelRequests({1: entry(1)}.get)
    for now in (11.0, 12.0, 14.0):
        requests.tokens_came(RunTokens([1, 1], [7, 8], [1, 1], [now == 12.0, False]), now)
    assert requests.between_tokens.sum == (1 + 0) + (1 + 2)  # at 14 a run has the future of one that is over
    requests.tokens_came(RunTokens([1, 1], [7, 8], [1, 1], [False, False]), 15.0)
    assert (requests.between_tokens.sum, requests.between_tokens.count) == (6, 5)


def test_whoever_has_ended_is_not_counted_again() -> None:
    requests = ModelRequests(lambda _: None)
    requests.tokens_came(runs(1), 11.0)
    requests.answered([Completion(1, 8, Token(5))], 11.0)
    requests.inferlet_ended(entry(1), 12.0)
    assert (requests.tenants, requests.whole.count, sum(requests.ended.values())) == ({}, 0, 0)


def test_a_token_that_failed_is_none() -> None:
    requests = ModelRequests({1: entry(1)}.get)
    requests.tokens_came(RunTokens([1], [7], [-1], [True], {0: WorkerError("it failed")}), 11.0)
    assert (requests.tenants["default"].generated, requests.first_token.count) == (0, 0)


def test_tenants_beyond_a_bound_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TENANTS", 1)
    requests = ModelRequests({number: entry(number, f"t{number}") for number in range(1, 4)}.get)
    for number in range(1, 4):
        requests.tokens_came(runs(number), 11.0)
    assert requests.tenants == {"t1": Tokens(generated=1), "(others)": Tokens(generated=2)}
