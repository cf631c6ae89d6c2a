"""The programs that benchmarks run in the sandbox, examples among them, and how to drive many of them at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wasmtime

from pie_control.client import Client
from pie_control.client.running import Running

from ..report import ROOT

FOLDER = Path(__file__).parent / "inferlets"
EXAMPLES = ROOT / "examples" / "inferlets"


def examples(*without: str) -> dict[Path, dict[str, Any]]:
    """How each example runs, by its folder: of those that need none of these (`tools`, `blobs`, `model`)."""
    runs = {file.parent: json.loads(file.read_text()) for file in sorted(EXAMPLES.glob("*/run.json"))}
    return {folder: options for folder, options in runs.items() if not options.keys() & {*without}}


def source(name: str) -> bytes:
    """The text of a program in benchmarks/support/inferlets."""
    return (FOLDER / f"{name}.py").read_bytes()


GUESTS = ("python", "component")
MOST_UPLOADS = 64
"""Launches at once: blobs are uploaded over a connection each, of which a client has 256 at most."""


def program_of(guest: str, name: str) -> bytes:
    """The program `name` for a kind of guest: those of GUESTS, or "rust"."""
    if guest == "python":
        return source(name)
    if guest == "rust":
        return (FOLDER / "rust" / name / f"{name}.wasm").read_bytes()
    return bytes(wasmtime.wat2wasm((FOLDER / f"{name}.wat").read_text()))


async def upload_both(client: Client, name: str) -> dict[str, str]:
    """The program `name` of the paper's evaluation, by its language; that in Rust is one for all."""
    programs = {"python": source(f"paper/{name}"), "rust": program_of("rust", "paper")}
    return {guest: await client.upload(program, guest) for guest, program in programs.items()}


async def launch_many(
    client: Client, program: str, count: int, *arguments: str, blobs: Mapping[str, bytes] | None = None
) -> list[Running]:
    """Launches `count` inferlets of a program, and waits until each has sent its first message."""
    places = asyncio.Semaphore(MOST_UPLOADS)

    async def launch() -> Running:
        async with places:
            return await client.launch(program, *arguments, blobs=blobs)

    running = await asyncio.gather(*(launch() for _ in range(count)))
    await asyncio.gather(*(one.receive() for one in running))
    return list(running)


async def end_all(running: list[Running]) -> None:
    """Terminates inferlets."""
    await asyncio.gather(*(one.terminate() for one in running))
