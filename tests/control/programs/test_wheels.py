"""What wheels need of the sandbox: the standard library, what describes them, their size."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from inferlet_sdk.guest.packages.package import MAX_BYTES, MAX_FILES
from inferlet_sdk.guest.standard_library import lacks
from pie_control.authoring.check.modules import is_there
from tests.control.programs.test_packages import archive, outcomes, wheel

SUBMODULES = (
    "importlib.metadata",
    "xml.etree.ElementTree",
    "html.parser",
    "urllib.request",
    "email.message",
    "ctypes.util",
)
ABSENT = ("ssl", "tkinter", "curses", "fcntl", "mmap", "turtle", "test")

IMPORTS_ALL = """
import importlib, sys

def main(args):
    found, failed = [], {}
    for name in (*sys.stdlib_module_names, *args.argv):
        if importlib.util.find_spec(name) is not None:
            found.append(name)
            try:
                importlib.import_module(name)
            except Exception as error:
                failed[name] = repr(error)
    return found, failed
"""


def test_all_of_the_standard_library_that_the_sandbox_has_can_be_imported(tmp_path: Path, guest_cache: Path) -> None:
    text = IMPORTS_ALL.replace("*args.argv", f"*{SUBMODULES}")
    (outcome,) = outcomes(tmp_path, guest_cache, text.encode())
    found, failed = json.loads(str(outcome))
    assert failed == {}
    public = {name for name in found if not name.startswith("_")}
    assert {*SUBMODULES, "platform", "gettext", "zoneinfo", "pickle", "sqlite3", "bz2", "ctypes"} <= public
    assert not {name for name in public if lacks(name)}
    assert not public.intersection(ABSENT)
    assert [name for name in public if not is_there(name, ())] == [], "`pie check` says so, too"
    assert [name for name in ABSENT if is_there(name, ())] == []


def test_what_the_sandbox_cannot_do_fails_when_it_is_called(tmp_path: Path, guest_cache: Path) -> None:
    text = """
import bz2, ctypes, lzma, socket, subprocess, tempfile, threading, urllib.request

def main(args):
    tries = [
        lambda: bz2.compress(b""), lambda: lzma.compress(b""), lambda: ctypes.CDLL("libc"), socket.socket,
        lambda: subprocess.run(["ls"]), tempfile.mkdtemp, lambda: threading.Thread(target=print).start(),
        lambda: urllib.request.urlopen("http://127.0.0.1:9/"),
    ]
    told = []
    for one in tries:
        try:
            told.append(repr(one()))
        except Exception as error:
            told.append(type(error).__name__)
    return told, ctypes.sizeof(ctypes.c_long)
"""
    (outcome,) = outcomes(tmp_path, guest_cache, text.encode())
    told = ["NotImplementedError"] * 3 + ["PermissionError", "OSError", "FileNotFoundError", "RuntimeError", "URLError"]
    assert json.loads(str(outcome)) == [told, 4]


def test_a_module_of_the_program_comes_before_one_of_the_library(tmp_path: Path, guest_cache: Path) -> None:
    main = "import platform\n\ndef main(args):\n    return platform.OWN\n"
    assert outcomes(tmp_path, guest_cache, archive({"main.py": main, "platform.py": "OWN = 1\n"})) == ["1"]


def test_wheels_have_their_metadata(tmp_path: Path, guest_cache: Path) -> None:
    main = (
        "from importlib import metadata\n\n"
        "def main(args):\n"
        "    points = metadata.entry_points(group='plugins')\n"
        "    return [metadata.version('Some.Thing'), [one.load().__name__ for one in points],\n"
        "            sorted(one.name for one in metadata.distributions())]\n"
    )
    described = {
        "some_thing/__init__.py": "def plugin():\n    pass\n",
        "some_thing-1.5.dist-info/METADATA": "Metadata-Version: 2.1\nName: some-thing\nVersion: 1.5\n",
        "some_thing-1.5.dist-info/entry_points.txt": "[plugins]\none = some_thing:plugin\n",
        "some_thing-1.5.dist-info/RECORD": "",
    }
    program = archive({"main.py": main, "wheels/some_thing-1.5-py3-none-any.whl": archive(described)})
    (outcome,) = outcomes(tmp_path, guest_cache, program)
    assert json.loads(str(outcome)) == ["1.5", ["plugin"], ["some-thing"]]


def test_packages_near_every_bound_load(tmp_path: Path, guest_cache: Path) -> None:
    """At 0.9 of the bytes, as one file of data that does not shrink and as modules; at 0.9 of the number of files."""
    size = int(MAX_BYTES * 0.9)
    data = os.urandom(size)
    reads = (
        "import hashlib, pkgutil\n\n"
        "def main(args):\n    return hashlib.sha256(pkgutil.get_data('a', 'b')).hexdigest()\n"
    )
    large = archive({"main.py": reads, "a/__init__.py": "", "a/b": data})
    module = "TEXT = '''" + "x" * 99 * 1024 + "'''\n\ndef f(a):\n    return len(TEXT) + a\n"
    count = size // len(module)
    imports = f"import m{count - 1}\n\ndef main(args):\n    return m{count - 1}.f(1)\n"
    modules = wheel({f"m{i}.py": module for i in range(count)})
    many = archive(
        {"main.py": "import m7\n\ndef main(args):\n    return m7.X\n"}
        | {f"m{i}.py": f"X = {i}\n" for i in range(int(MAX_FILES * 0.9))}
    )
    found = outcomes(tmp_path, guest_cache, large, archive({"main.py": imports, "wheels/m.whl": modules}), many)
    assert found == [f'"{hashlib.sha256(data).hexdigest()}"', str(99 * 1024 + 1), "7"]


def test_the_text_of_one_file_may_be_larger_than_a_call(tmp_path: Path, guest_cache: Path) -> None:
    text = "\ufeffX = '" + "ä" * (5 << 20) + "'\n\nasync def main(args):\n    assert len(X) < 0, 'here'\n"
    (outcome,) = outcomes(tmp_path, guest_cache, text.encode())
    assert "assert len(X) < 0, 'here'" in str(outcome), "the source is there"


def test_errors_of_the_host_pass_a_with(tmp_path: Path, guest_cache: Path) -> None:
    text = """
import contextlib
from inferlet_sdk import bindings

@contextlib.contextmanager
def passing():
    yield

def main(args):
    try:
        with passing(), contextlib.ExitStack():
            bindings.guest_source.put_code("mine")
    except bindings.HostError as error:
        return error.value.code
"""
    assert outcomes(tmp_path, guest_cache, text.encode()) == ['"unsupported"']
