"""Programs of several files, launched and refused by the command line at a server that runs them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pie_control.cli.main import main
from tests.control.programs.test_packages import MAIN, WORDS, archive, wheel, write
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.live_server import live_server
from tests.helpers.servers import cache_with_guest

Capture = pytest.CaptureFixture[str]
USES_WHEEL = "import some\n\ndef main(args, *, end='.'):\n    return some.X + end\n"


@pytest.fixture(scope="module", params=[0, 2], ids=["hosts 0", "hosts 2"])
def url(request: pytest.FixtureRequest, guest_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    cache = cache_with_guest(tmp_path_factory.mktemp("cache"), guest_cache)
    with live_server(cache, hosts=request.param) as url:
        yield url


def pie(url: str, command: str, *arguments: str) -> int:
    return main([command, "--server", url, *arguments])


def test_a_folder_an_archive_a_package_and_a_wheel_run(url: str, tmp_path: Path, capsys: Capture) -> None:
    files = {"main.py": MAIN, "helpers/words.py": WORDS, "helpers/signs.py": "END = '!'\n"}
    folder = write(tmp_path / "shouter", files)
    packed = tmp_path / "packed.zip"
    packed.write_bytes(archive(files))
    runs = "from .inner import VALUE\n\ndef main(args):\n    return VALUE\n"
    package = write(tmp_path / "tool", {"__init__.py": "", "__main__.py": runs, "inner.py": "VALUE = 7\n"})
    with_wheel = write(
        tmp_path / "wheeled",
        {"main.py": USES_WHEEL, "wheels/some-1.0-py3-none-any.whl": wheel({"some.py": "X = 'pure'\n"})},
    )
    for program, printed in (
        ((str(folder),), '"HELLO!"\n'),
        ((str(packed),), '"HELLO!"\n'),
        ((str(package),), "7\n"),
        ((str(with_wheel), "--", "--end", "!"), '"pure!"\n'),
    ):
        assert pie(url, "run", *program) == 0
        assert capsys.readouterr().out == printed


def test_a_folder_is_launched_under_its_name_wherever_one_stands(
    url: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "my.app", {"main.py": "def main(args):\n    print('I ran')\n"})
    monkeypatch.chdir(folder)
    assert pie(url, "launch", ".") == 0
    inferlet = capsys.readouterr().out.strip()
    until = time.monotonic() + HANG_SECONDS
    while "I ran" not in capsys.readouterr().out:
        assert time.monotonic() < until
        assert pie(url, "logs", "-f", inferlet) == 0
    assert pie(url, "programs") == 0
    assert " my.app " in capsys.readouterr().out
    assert pie(url, "run", "my.app") == 2  # a launch takes no name
    assert "'my.app' is not a file, a program of the server or an example" in capsys.readouterr().err
    assert pie(url, "upload", ".") == 0
    assert pie(url, "run", "my.app") == 0  # the server's
    assert pie(url, "stop", inferlet) == 0  # has ended: nothing happens


def test_what_cannot_run_is_refused_with_what_to_do(url: str, tmp_path: Path, capsys: Capture) -> None:
    entry = "def main(args): pass\n"
    archives = {
        "no main.py and no __main__.py at the top": archive({"other.py": "", "more.py": ""}),
        "would lie elsewhere: ../../evil.py": archive({"main.py": entry, "../../evil.py": ""}),
        "no zip archive that can be read": archive({"main.py": entry, "data": "x" * 1000})[:500],
        "take a wheel whose name ends with -none-any.whl": archive(
            {"main.py": entry, "fast-1.0-cp311-cp311-linux_x86_64.whl": wheel({"fast/core.so": b"\x7fELF"})}
        ),
        "the sandbox has no module 'numpy'": archive({"main.py": f"import numpy\n{entry}", "more.py": ""}),
    }
    for message, data in archives.items():
        file = tmp_path / "broken.zip"
        file.write_bytes(data)
        assert pie(url, "launch", str(file)) == 2
        error = capsys.readouterr().err
        assert "the program cannot be used" in error
        assert message in error
    (tmp_path / "empty").mkdir()
    for given, message in (
        (tmp_path / "empty", "has no main.py and no __main__.py"),
        (tmp_path / "gone.zip", "there is no file"),
        (tmp_path / "gone", "there is no file"),
    ):
        assert pie(url, "launch", str(given)) == 2
        assert message in capsys.readouterr().err
