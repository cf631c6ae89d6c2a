"""`pie state`: what it tells of a folder, while a server uses it and later."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pie_control.cli.main import main
from pie_control.durable.state import State
from tests.helpers.guard import HANG_SECONDS


def test_what_there_is_in_a_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = State(tmp_path, 30.0, 1 << 30, (7.5, 1 << 20))
    for created in (9000.0, 2000.0):
        state.inferlets.launched(state.inferlets.next_number(), "alice", "ab" * 32, "story", created)
    state.inferlets._writer.wait(HANG_SECONDS)

    assert main(["state", "show", "--json", "--state", str(tmp_path)]) == 0
    told = json.loads(capsys.readouterr().out)
    tables = {one["name"]: (one["rows"], one["oldest"]) for one in told["tables"]}
    assert (told["file"], told["server"]) == (str(tmp_path / "state.sqlite3"), os.getpid())
    assert (tables["inferlets"], tables["responses"]) == ((2, 2000.0), (0, None))
    assert told["sizes"]["state.sqlite3-wal"] > 0
    bounds = {
        "state_seconds": 30 * 86400,
        "state_bytes": 1 << 30,
        "response_seconds": 648000,
        "response_bytes": 1 << 20,
    }
    assert told["bounds"] == bounds
    state.close()

    assert main(["state", "--state", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "no server uses it" in text
    assert "stored responses of a tenant for 7.5 days, 1 MiB at most" in text
    assert main(["state", "backup", str(tmp_path / "copy"), "--state", str(tmp_path)]) == 0
    assert main(["state", "restore", str(tmp_path / "copy"), "--state", str(tmp_path / "other")]) == 0
    assert (tmp_path / "other" / "state.sqlite3").exists()
    assert (tmp_path / "copy").exists()


def test_where_there_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["state", "--state", str(tmp_path)]) == 2
    assert "there is no state in" in capsys.readouterr().err
    for action in (["list"], ["usage"], ["audit"], ["revoke", "laptop"]):
        assert main(["keys", *action, "--state", str(tmp_path / "nowhere")]) == 2
        assert "there is no state in" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "state.sqlite3").write_bytes(b"no database, but long enough for a header" * 9)
    assert main(["state", "--state", str(tmp_path)]) == 2
    assert "cannot be used" in capsys.readouterr().err
