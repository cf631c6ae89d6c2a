"""Programs of several files: made of a folder, uploaded, run, refused."""

from __future__ import annotations

import asyncio
import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from pie_control.client.programs.packages import package_of, read_program
from pie_control.errors import BadProgram, BadRequest
from pie_control.programs.kinds import kind_of
from pie_control.server_api import ServerApi
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import Listener, cache_with_guest, started

MAIN = "import helpers.words\n\ndef main(args):\n    return helpers.words.shout('hello')\n"
WORDS = "from . import signs\n\ndef shout(text):\n    return text.upper() + signs.END\n"


def archive(files: Mapping[str, str | bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as content:
        for path, data in files.items():
            content.writestr(path, data)
    return made.getvalue()


def wheel(files: Mapping[str, str | bytes]) -> bytes:
    return archive({**files, "some-1.0.dist-info/METADATA": "Name: some", "some-1.0.dist-info/RECORD": ""})


def write(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    return folder


def outcomes(tmp_path: Path, guest_cache: Path, *programs: bytes) -> list[str | None]:
    """What each program ends with: its result, or its error."""

    async def one(server: ServerApi, data: bytes) -> str | None:
        try:
            program = await server.upload(data, "it")
        except BadProgram as error:
            return str(error)
        listener = Listener()
        await server.launch(program.program, listener=listener)
        ended = await listener.ended
        return ended.result if ended.error is None else ended.error

    async def check() -> list[str | None]:
        cache = cache_with_guest(tmp_path, guest_cache)
        async with started(cache, InProcessClient(FakeModel()), warm_pool=0) as server, asyncio.timeout(HANG_SECONDS):
            return [await one(server, data) for data in programs]

    return asyncio.run(check())


def test_a_folder_becomes_the_same_archive_each_time_without_what_is_hidden_or_made(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "main.py": MAIN, "helpers/words.py": WORDS, "data.txt": "x", ".git/config": "", "__pycache__/main.pyc": b"",
        "env/pyvenv.cfg": "", "env/lib/some.py": "", "helpers/old.pyc": b"",
    }  # fmt: skip
    folder = write(tmp_path / "program", files)
    made = package_of(folder)
    assert zipfile.ZipFile(io.BytesIO(made)).namelist() == ["data.txt", "helpers/words.py", "main.py"]
    (folder / "main.py").touch()
    assert read_program(folder) == made
    assert kind_of(made) == "package"
    assert read_program(folder / "main.py") == MAIN.encode()


def test_a_folder_that_is_a_package_keeps_its_name(tmp_path: Path) -> None:
    folder = write(tmp_path / "tool", {"__init__.py": "", "__main__.py": "from . import inner\n", "inner.py": ""})
    names = zipfile.ZipFile(io.BytesIO(package_of(folder))).namelist()
    assert names == ["tool/__init__.py", "tool/__main__.py", "tool/inner.py"]


def test_a_file_whose_name_is_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("")
    with open(os.fsencode(tmp_path) + b"/\xff.txt", "wb"):
        pass
    with pytest.raises(BadRequest, match=r"xff\.txt' is no text in UTF-8: rename it|udcff\.txt' is no text"):
        package_of(tmp_path)


def test_a_folder_without_an_entry_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "program", {"other.py": ""})
    with pytest.raises(BadRequest, match=r"is no program: it has no main\.py and no __main__\.py"):
        package_of(folder)


def test_packages_run(tmp_path: Path, guest_cache: Path) -> None:
    helpers = {"helpers/words.py": WORDS, "helpers/signs.py": "END = '!'\n"}
    reads = (
        "import importlib.resources, pkgutil\nimport inferlet_sdk, texts\n\n"
        "def main(args):\n"
        "    files = inferlet_sdk.program_files()\n"
        "    one = importlib.resources.files('texts').joinpath('a.txt').read_text()\n"
        "    two = (files / 'texts' / 'a.txt').read_bytes().decode()\n"
        "    with (files / 'texts' / 'a.txt').open() as file:\n"
        "        three = file.read()\n"
        "    return [one, two, three, sorted(each.name for each in files.iterdir())]\n"
    )
    as_module = {
        "tool/__init__.py": "",
        "tool/__main__.py": "from .inner import VALUE\n\ndef main(args):\n    return [VALUE, __package__, __name__]\n",
        "tool/inner.py": "VALUE = 7\n",
    }
    uses_wheel: dict[str, str | bytes] = {
        "main.py": "import some.deep as deep\nimport plain\n\ndef main(args):\n    return [deep.X, plain.Y]\n",
        "wheels/some-1.0-py3-none-any.whl": wheel({"some/__init__.py": "", "some/deep.py": "X = 1\n"}),
        "plain-1.0-py3-none-any.whl": wheel({"plain.py": "Y = 2\n"}),
    }
    fails = {
        "main.py": "import inner\n\ndef main(args):\n    inner.fail()\n",
        "inner.py": "def fail():\n    1 / 0  # here\n",
    }
    found = outcomes(
        tmp_path,
        guest_cache,
        archive({"main.py": MAIN, **helpers}),
        archive({f"folder/{path}": data for path, data in {"main.py": MAIN, **helpers}.items()}),
        archive({"__main__.py": reads, "texts/__init__.py": "", "texts/a.txt": "text"}),
        archive(as_module),
        archive(uses_wheel),
        archive(fails),
    )
    assert found[:2] == ['"HELLO!"'] * 2
    assert json.loads(str(found[2])) == ["text", "text", "text", ["texts"]]
    assert json.loads(str(found[3])) == [7, "tool", "__main__"]
    assert json.loads(str(found[4])) == [1, 2]
    error = str(found[5])
    assert 'File "main.py", line 4, in main' in error
    assert 'File "inner.py", line 2, in fail\n    1 / 0  # here' in error


def test_packages_that_cannot_run_are_refused_at_upload_with_what_to_do(tmp_path: Path, guest_cache: Path) -> None:
    native = wheel({"fast/__init__.py": "", "fast/core.cpython-314-x86_64-linux-gnu.so": b"\x7fELF"})
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as content:
        content.writestr("main.py", MAIN)
        content.writestr("zeros", bytes(40 << 20))
    whole = archive({"main.py": "def main(args): pass\n", "data": "x" * 1000})
    cases = {
        "there is no main.py and no __main__.py at the top": archive({"other.py": "", "more.py": ""}),
        "would lie elsewhere: ../main.py": archive({"../main.py": MAIN, "main.py": MAIN}),
        "would lie elsewhere: /main.py": archive({"/main.py": MAIN}),
        "fast.whl has compiled code (fast/core.cpython-314-x86_64-linux-gnu.so)": archive(
            {"main.py": "def main(args): pass\n", "fast.whl": native}
        ),
        "more than 32 MiB, unpacked": bomb.getvalue(),
        "no zip archive that can be read": whole[: len(whole) // 2],
        "wheels/bad.whl is no zip archive": archive({"main.py": MAIN, "wheels/bad.whl": b"nothing"}),
        "SyntaxError": archive({"main.py": "def main(args): pass\n", "bad.py": "def (:\n"}),
        "bad.py is not in UTF-8": archive({"main.py": "def main(args): pass\n", "bad.py": b"x = '\xff'\n"}),
        "main, line 2: the sandbox has no module 'numpy'; it has the pure parts": archive(
            {"main.py": "import json\nimport numpy as np\n\ndef main(args): pass\n"}
        ),
        "inner, line 1: the sandbox has no module 'nowhere'": archive(
            {"main.py": "from inner import x\n\ndef main(args): pass\n", "inner.py": "import nowhere\n"}
        ),
        "no module 'helpers.missing'": archive(
            {"main.py": "import helpers.missing\n\ndef main(args): pass\n", "helpers/there.py": ""}
        ),
        "line 1: the sandbox has no module 'torch'": b"import torch\n\ndef main(args): pass\n",
    }
    found = outcomes(tmp_path, guest_cache, *cases.values())
    for message, outcome in zip(cases, found, strict=True):
        assert message in str(outcome), outcome


def test_imports_that_may_never_run_are_no_reason_to_refuse(tmp_path: Path, guest_cache: Path) -> None:
    lazily = "    try:\n        import pandas\n    except ModuleNotFoundError as error:\n        return str(error)\n"
    text = (
        "from typing import TYPE_CHECKING\n"
        "try:\n    import numpy\nexcept ImportError:\n    numpy = None\n"
        "if TYPE_CHECKING:\n    import torch\n\n"
        f"def main(args):\n{lazily}"
    )
    unused = archive({"main.py": "def main(args):\n    return 1\n", "plugin.py": "import numpy\n"})
    assert outcomes(tmp_path, guest_cache, text.encode(), unused) == ["\"No module named 'pandas'\"", "1"]
