"""When a host has its rounds: soon after somebody asks, or when it is let go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pie_control.application.rounds import Rounds


class Counted:
    """A runner that has nothing to do, and counts how often it is asked."""

    has_work = False

    def __init__(self) -> None:
        self.rounds = 0

    def run_ready(self) -> bool:
        self.rounds += 1
        return True

    def run_busy(self) -> bool:
        return False


def play(body: Callable[[Rounds, Counted], None]) -> int:
    """How many rounds there were in the end."""

    async def check() -> int:
        counted: Any = Counted()
        rounds = Rounds(lambda quiet: None)
        rounds.runner = counted
        body(rounds, counted)
        for _ in range(3):
            await asyncio.sleep(0)
        return int(counted.rounds)

    return asyncio.run(check())


def test_one_round_comes_however_often_it_is_asked_for() -> None:
    def body(rounds: Rounds, counted: Counted) -> None:
        rounds.wake()
        rounds.wake()
        assert counted.rounds == 0

    assert play(body) == 1


def test_a_round_that_is_asked_for_while_held_comes_with_let_go() -> None:
    def body(rounds: Rounds, counted: Counted) -> None:
        rounds.hold()
        assert not rounds.is_due
        rounds.wake()
        rounds.hold()  # a second frame
        assert rounds.is_due
        assert counted.rounds == 0
        rounds.let_go()
        assert counted.rounds == 1

    assert play(body) == 1


def test_a_round_that_was_asked_for_before_comes_with_let_go() -> None:
    def body(rounds: Rounds, counted: Counted) -> None:
        rounds.wake()
        rounds.hold()
        assert rounds.is_due
        rounds.let_go()
        assert counted.rounds == 1

    assert play(body) == 1


def test_no_round_comes_if_nobody_asks_or_the_host_is_closed() -> None:
    def body(rounds: Rounds, counted: Counted) -> None:
        rounds.hold()
        rounds.let_go()
        rounds.wake()
        rounds.close()

    assert play(body) == 0


def test_a_round_that_is_owed_is_asked_for_once_more() -> None:
    def body(rounds: Rounds, counted: Counted) -> None:
        rounds.owe()

    assert play(body) == 1
