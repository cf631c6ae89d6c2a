"""What a worker tells of its loading reaches the user, and keeps the control process waiting."""

from __future__ import annotations

import asyncio
import io
import logging
import socket
import sys
import time
from pathlib import Path

import pytest

from pie_control.errors import WorkerUnavailable
from pie_control.inference_client.client import WorkerClient
from pie_control.inference_client.local import LocalWorker
from pie_control.inference_client.process import WORKER, start_worker
from pie_control.processes import status_line
from tests.helpers.guard import HANG_SECONDS

SAYS = r"""
for share in 10% 20%; do
    printf '%s\r' $share >&2
    until [ -e "{folder}/heard $share" ]; do sleep 0.01; done
done
printf '99%%\rloaded\nlast words' >&2
"""


def pretend_worker(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "worker"
    show = status_line.StatusLine.show

    def heard(line: status_line.StatusLine, text: str) -> None:
        show(line, text)
        (folder / f"heard {text}").touch()

    monkeypatch.setattr(status_line.StatusLine, "show", heard)
    path.write_text(f"#!/bin/sh\n{script.replace('{folder}', str(folder))}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


async def run_worker() -> None:
    ended = asyncio.Event()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = start_worker(WORKER, [], theirs.fileno(), ended.set)
    await asyncio.wait_for(ended.wait(), HANG_SECONDS)
    await worker.end(1.0)


def test_a_terminal_shows_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", stderr)
    pretend_worker(SAYS, tmp_path, monkeypatch)
    asyncio.run(run_worker())
    clear = status_line.CLEAR
    assert stderr.getvalue() == f"{clear}10%{clear}20%{clear}"
    assert [record.message.partition(": ")[2] for record in caplog.records] == ["loaded"]


def test_a_log_has_a_line_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    pretend_worker(SAYS, tmp_path, monkeypatch)
    caplog.set_level(logging.INFO)
    asyncio.run(run_worker())
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == ["10%", "loaded"]


def test_a_worker_that_tells_its_progress_has_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("pie.worker"), "disabled", True)
    pretend_worker("for i in 1 2 3 4 5 6; do sleep 0.2; printf 'x\r' >&2; done; sleep 300", tmp_path, monkeypatch)

    async def start() -> None:
        with pytest.raises(WorkerUnavailable, match=r"no worker was ready within 1 s"):
            await WorkerClient(LocalWorker(["--model", "m"], start_seconds=1.0)).start()

    started = time.monotonic()
    asyncio.run(start())
    assert time.monotonic() - started > 2.1
