"""Launches that inferlets ask for, with hosts and a library that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pie_control.application.messages import Finished, LaunchChild, NotLaunched, Report
from pie_control.engine.child_launches import ChildLaunches
from pie_control.errors import (
    BadProgram,
    CallError,
    Exhausted,
    InvalidArgument,
    InvalidState,
    NotFound,
    Overloaded,
    UnknownName,
)
from pie_control.inferlets.events import Ended, Launch
from pie_control.programs.program_host import ProgramHost
from pie_control.programs.store import Program
from pie_control.registry.entry import Entry
from pie_control.tenants.tenant import ServiceClass, Standing, Tenant
from tests.control.engine.test_hosts import Scene, play

STANDING = Standing(Tenant("payer"), ServiceClass.BATCH)


class Library:
    """Finds each program, when `gate` is open."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.asked: list[tuple[str, str]] = []

    async def find(self, reference: str, _host: ProgramHost, owner: str) -> Program:
        self.asked.append((reference, owner))
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.program


def with_parent(folder: Path, body: Callable[[Scene, Entry, Library], Awaitable[None]]) -> None:
    async def run(scene: Scene) -> None:
        library: Any = Library(scene.program)
        scene.hosts.on_child = ChildLaunches(library, scene.registry, scene.hosts).take
        parent = await scene.launch()
        parent.standing = STANDING
        await body(scene, parent, library)

    play(folder, run)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_child_goes_to_the_host_of_its_parent_in_its_standing(tmp_path: Path) -> None:
    async def body(scene: Scene, parent: Entry, library: Library) -> None:
        for program in ("its name", ""):
            scene.link(parent).says(LaunchChild(parent.number, 7, program, ["-x"], {"a": "b"}))
        await settle()
        first, second = scene.link(parent).take(Launch)[1:]
        assert (first.parent, first.child, first.arguments, first.environment) == (1, 7, ["-x"], {"a": "b"})
        assert (first.standing, second.standing) == (STANDING, STANDING)
        assert library.asked == [("its name", scene.program.owner), (scene.program.hash, scene.program.owner)]
        entry = scene.registry.get(f"i{first.number}", STANDING.tenant.name)
        assert (entry.host, entry.info().parent, parent.info().parent) == (parent.host, parent.id, None)

    with_parent(tmp_path, body)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (UnknownName("no"), NotFound("no")),
        (BadProgram("bad"), InvalidArgument("bad")),
        (Overloaded("full"), Exhausted("full")),
        (OSError("no descriptors"), Exhausted("the server cannot read the program now: try again later")),
        (
            KeyError("bug"),
            InvalidState("the child could not be launched (KeyError('bug')): this is a defect of the server"),
        ),
    ],
)
def test_why_not_is_told_to_the_parent(tmp_path: Path, error: Exception, expected: CallError) -> None:
    async def body(scene: Scene, parent: Entry, library: Library) -> None:
        library.error = error
        scene.link(parent).says(LaunchChild(parent.number, 7, "p", [], {}))
        await settle()
        (told,) = scene.link(parent).take(NotLaunched)
        assert (told.parent, told.child) == (parent.number, 7)
        assert (type(told.error), str(told.error)) == (type(expected), str(expected))
        assert scene.registry.statistics().launched == 1

    with_parent(tmp_path, body)


def test_a_host_without_memory_takes_no_child(tmp_path: Path) -> None:
    async def body(scene: Scene, parent: Entry, library: Library) -> None:
        scene.link(parent).says(Report(900, 0.0, 0, 0, 0))
        scene.link(parent).says(LaunchChild(parent.number, 7, "p", [], {}))
        await settle()
        (told,) = scene.link(parent).take(NotLaunched)
        assert isinstance(told.error, Exhausted)
        assert "try again later" in str(told.error)

    with_parent(tmp_path, body)


@pytest.mark.parametrize("lost", [False, True])
def test_a_parent_that_ends_meanwhile_gets_no_child(tmp_path: Path, lost: bool) -> None:
    async def body(scene: Scene, parent: Entry, library: Library) -> None:
        library.gate.clear()
        link = scene.link(parent)
        link.says(LaunchChild(parent.number, 7, "p", [], {}))
        await settle()
        link.take(Launch)
        if lost:
            link.on_lost("it was killed")
        else:
            link.says(Finished(parent.number, Ended("terminated", inferlet=parent.id), 0.0))
        library.gate.set()
        await settle()
        assert link.take(Launch) == []
        assert scene.registry.statistics().launched == 1
        link.says(LaunchChild(parent.number, 8, "p", [], {}))  # was under way
        await settle()
        assert link.take(Launch) == []
        assert link.take(NotLaunched) == []

    with_parent(tmp_path, body)
