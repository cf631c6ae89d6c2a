"""Tests of inferlets, with pytest: the program runs outside of the sandbox, on a real model or a fake one.

from inferlet_sdk.testing import run

def test_main():
    outcome = run("main.py", topic="bees")
    assert outcome.result["topic"] == "bees"

`pie test` runs such tests, and `async def` ones as inferlets of their own. For trusted programs only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

__all__ = ["InferletFailed", "Outcome", "run", "use_fake_model"]


@dataclass(frozen=True)
class Outcome:
    """What a program did. `result` is what it returned; `messages` what it sent, one by one; `log` the lines of its
    log; `tokens` what it got from the model, in order; None in the sandbox, where they are not seen."""

    result: Any
    messages: list[str]
    log: list[str]
    tokens: list[int] | None

    @property
    def text(self) -> str:
        """All messages in one."""
        return "".join(self.messages)


class InferletFailed(Exception):
    """The program has failed; the message is its traceback. `outcome`: what it did until then."""

    def __init__(self, message: str, outcome: Outcome) -> None:
        super().__init__(message)
        self.outcome = outcome


Content = str | Path | bytes
"""What a blob is made of: the path of a file, or bytes."""

SERVERS = "inferlet_sdk.testing"
"""The group of entry points with what runs programs: a module with `run_program` and `choose_fake_model`."""


def run(
    program: str | Path | Callable[..., Any],
    /,
    *args: Any,
    inbox: Sequence[str | tuple[str, Mapping[str, Content]]] = (),
    environment: Mapping[str, str] | None = None,
    blobs: Mapping[str, Content] | None = None,
    **kwargs: Any,
) -> Outcome:
    """Runs a program to its end: a file or a folder, beside the file of the caller or in the current folder; or a
    function, which takes `args` first as `main` does.

    `args` and `kwargs` are the parameters of its `main`: JSON values; texts in `args` are words of a command line.
    `inbox` are the messages of its client, each a text, or a text with blobs: `("What is this?", {"photo":
    "cat.png"})`. `blobs` and `environment` come with the launch. Raises InferletFailed.
    """
    import inspect

    if not callable(program) and not isinstance(program, str | Path):
        raise TypeError(f"program: give a file, a folder or a function, not {type(program).__name__} {program!r}")
    frame = inspect.currentframe()
    caller = frame.f_back.f_globals.get("__file__", "") if frame is not None and frame.f_back is not None else ""
    found = program if callable(program) else _file(Path(caller).parent / program, Path(program))
    outcome: Outcome = _server().run_program(found, args, inbox, kwargs, blobs or {}, environment)
    return outcome


def _file(beside: Path, here: Path) -> Path:
    return beside if beside.exists() else here


def use_fake_model() -> None:
    """Programs of this process run on a model without weights, whose tokens mean nothing but are the same again; to be
    called before the first `run`. `pie test --fake` does the same."""
    _server().choose_fake_model()


def _server() -> Any:
    """What runs programs: a package that is installed beside this one names it. The sandbox has none."""
    found = list(entry_points(group=SERVERS))
    if not found:
        raise RuntimeError(
            "nothing is installed that runs programs: install Pie (docs/install.md); in a checkout that was installed "
            "before it had this, `pip install -e .` once more"
        )
    return found[0].load()
