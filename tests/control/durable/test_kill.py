"""A server that is killed, at whatever point, has forgotten nothing that it had acknowledged."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

from pie_control.durable.state import State
from tests.helpers.guard import HANG_SECONDS

ROUNDS = int(os.environ.get("PIE_TEST_KILLS", "4"))
MOST_LINES = 300


def test_nothing_acknowledged_is_lost_and_no_number_comes_twice(tmp_path: Path) -> None:
    rng = random.Random(0)
    launched: list[int] = []
    ended: set[int] = set()
    for _ in range(ROUNDS):
        command = [sys.executable, "-m", "tests.control.durable.killed", str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(rng.randrange(MOST_LINES)):
                _hear(process.stdout.readline(), launched, ended)
            process.kill()
            for line in process.stdout:  # what it had said before
                _hear(line, launched, ended)
    assert len(set(launched)) == len(launched)
    state = State(tmp_path, 30.0, 1 << 30)
    state.inferlets._writer.wait(HANG_SECONDS)
    for number in launched:
        found = state.inferlets.find(number)
        assert found is not None
        if number in ended:
            assert (found.status, found.result) == ("finished", f"result {number}")
        else:
            assert found.status == "lost" or found.result == f"result {number}"
    state.close()


def _hear(line: str, launched: list[int], ended: set[int]) -> None:
    match line.split():
        case ["launched", number] if line.endswith("\n"):
            launched.append(int(number))
        case ["ended", number] if line.endswith("\n"):
            ended.add(int(number))
