"""Processes that tests start as copies of one."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from tests.helpers.fork_server import ForkServers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="fork servers need Linux")


def test_a_fork_server_outlives_the_thread_that_started_it() -> None:
    servers = ForkServers()
    codes = list[int]()

    def start() -> None:
        command = [sys.executable, "-m", "pie_control.application.process", "no descriptor"]
        process = servers.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(), stderr=subprocess.PIPE)
        assert process.stderr is not None
        with process.stderr:
            assert b"ValueError" in process.stderr.read()
        codes.append(process.wait())

    try:
        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
        (before,) = [server._process.pid for server in servers._servers.values()]
        start()
        assert codes == [1, 1]
        assert [server._process.pid for server in servers._servers.values()] == [before]
    finally:
        servers.end()
