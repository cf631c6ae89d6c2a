"""Tries popular pure Python packages in the sandbox, and writes the list of docs/inferlets.md. Needs a package index.

    .venv/bin/python scripts/try_packages.py

Each is downloaded with what it depends on, as pure wheels; a program imports it and asks for its version.
"""

from __future__ import annotations

import asyncio
import io
import re
import subprocess
import sys
import tempfile
import textwrap
import zipfile
from pathlib import Path

from pie_control import host_api
from pie_control.programs.compiling import _package
from pie_control.programs.host.programs import HostPrograms
from pie_control.programs.host.python_source import Compilation
from pie_control.programs.python_guest import compiled_guest
from pie_control.programs.warm_pool import WarmPool
from pie_control.sandbox.fibers import Step

PACKAGES = {
    "typing-extensions": "typing_extensions", "packaging": "packaging", "six": "six", "idna": "idna",
    "python-dateutil": "dateutil.parser", "attrs": "attrs", "click": "click", "pygments": "pygments.lexers",
    "rich": "rich.table", "tqdm": "tqdm", "jsonschema": "jsonschema", "pyparsing": "pyparsing", "pytz": "pytz",
    "tzdata": "tzdata", "beautifulsoup4": "bs4", "tabulate": "tabulate", "more-itertools": "more_itertools",
    "tenacity": "tenacity", "cachetools": "cachetools", "networkx": "networkx", "sympy": "sympy", "mpmath": "mpmath",
    "markdown": "markdown", "markdown-it-py": "markdown_it", "docutils": "docutils.core", "jmespath": "jmespath",
    "lark": "lark", "sortedcontainers": "sortedcontainers", "toolz": "toolz", "chardet": "chardet",
    "babel": "babel.dates", "jinja2": "jinja2", "pyyaml": "yaml", "regex": "regex",
}  # fmt: skip
"""Each with what a program imports of it; the last ones have compiled parts, or need some."""
PAGE = Path(__file__).parents[1] / "docs" / "inferlets.md"
PURE = (
    *("--only-binary", ":all:", "--python-version", "3.14", "--implementation", "py", "--abi", "none"),
    *("--platform", "any"),
)
REFUSED = "no: "
BEGIN, END = "<!-- packages: scripts/try_packages.py -->\n", "<!-- end of packages -->\n"


class Run(Compilation):
    """The owner of an instance that runs a program to its result."""

    def __init__(self) -> None:
        super().__init__("", "")
        self.arguments = []


def tried(programs: HostPrograms, name: str, module: str) -> str:
    """The version that a program in the sandbox finds, or why it finds none."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "-q", *PURE, "-d", folder, name]
        if subprocess.run(pip, capture_output=True, check=False).returncode:
            return f"{REFUSED}it, or what it needs, has no pure wheel"
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as content:
            entry = f"def main(args):\n    return metadata.version({name!r})\n"
            content.writestr("main.py", f"import {module}\nfrom importlib import metadata\n\n{entry}")
            for wheel in Path(folder).glob("*.whl"):
                content.write(wheel, f"wheels/{wheel.name}")
    try:
        code = asyncio.run(programs.compile(name, _package(archive.getvalue())))
    except Exception as error:
        return f"{REFUSED}{str(error).splitlines()[-1]}"
    programs.provide(name, "", code)
    owner = Run()
    instance = programs.instance(name, name, owner)
    while instance.step() is Step.PREEMPTED:
        pass
    failure = instance.outcome()
    instance.close()
    return f"{REFUSED}{failure.splitlines()[-1]}" if failure else owner.code.strip(chr(34))


def main() -> None:
    programs = HostPrograms(host_api.contract(), 256 << 20, WarmPool(0, 0))
    programs.start(asyncio.run(compiled_guest(Path.home() / ".cache" / "pie")))
    imported, refused = [], []
    for name, module in PACKAGES.items():
        said = tried(programs, name, module)
        print(name, said, flush=True)
        if said.startswith(REFUSED):
            refused.append(f"{name} ({said.removeprefix(REFUSED)})")
        else:
            imported.append(f"{name} {said}")
    programs.close()
    told = f"These import: {', '.join(imported)}. These do not: {', '.join(refused)}."
    listed = f"{BEGIN}{textwrap.fill(told, 120, break_on_hyphens=False)}\n{END}"
    PAGE.write_text(
        re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: listed, PAGE.read_text(), flags=re.DOTALL)
    )


if __name__ == "__main__":
    main()
