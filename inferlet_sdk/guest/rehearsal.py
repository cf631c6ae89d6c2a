"""Runs programs against a fake host, so that the interpreter is warm when a real program comes.

CPython adapts to the code that it runs: it specializes bytecode, fills caches and tags types, all by writing to memory.
After a rehearsal at build time the snapshot holds the adapted state and instances share it; otherwise each instance
would write to these pages and copy them. An instance made ahead of a launch rehearses again, which copies pages before
the launch: first those that every program writes to, and, if it is asked once more, those that generating text does.
The fake host answers every call at once.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from inferlet_sdk import bindings
from inferlet_sdk.guest import program
from inferlet_sdk.guest.packages import compiled

BEGINNING = """
from inferlet_sdk import inferlet

@inferlet
async def main(args, number: int = 1):
    await args.send("rehearsal")
    return number
"""

GENERATION = """
import asyncio
from inferlet_sdk import Context, IgnoreStopTokens, Sampler, inferlet

@inferlet
async def main(args, tokens: int = 48):
    async with Context(args.model) as context:
        context.fill("rehearsal")
        async for piece in context.generate(max_tokens=tokens):
            await args.send(piece)
        await args.stream(context.generate(max_tokens=2, stop="xy"))
        for _ in range(16):
            context.fill([(await context.next_dist()).max_index()])
        branches = [context.fork(), context.fork()]
        await asyncio.gather(*(branch.generate_until(max_tokens=4, sampler=Sampler()) for branch in branches))
        for branch in branches:
            branch.close()
    async with Context(args.model) as prompted:
        await prompted.fill(list(range(300))).generate_until(IgnoreStopTokens(), 4)
    await asyncio.sleep(0.000001)
    await args.send(await args.receive())
    return context.model.name
"""

CODES = {text: "".join(compiled.compile_source("rehearsal.py", text)) for text in (BEGINNING, GENERATION)}

INFO = {
    "name": "rehearsal", "architecture": "", "page_size": 16, "vocab_size": 1000, "hidden_size": 8,
    "max_context": 1000, "max_batch_tokens": 512, "max_dist": 256, "stop_tokens": [0],
    "bos_text": None, "eos_text": None, "has_chat_template": False, "image_token": None, "moves_tokens": True,
    "begin_tokens": [], "end_tokens": [], "pooling": "", "sampling": {}, "state_pages": 0,
}  # fmt: skip
"""The model of the host."""
DIST = "BwAAAAgAAAA=", "AAAAPwAAgD4=", [0.25]
"""What it gives for each distribution: tokens and probabilities, packed, and the rest."""


def _host() -> Any:
    """A host with every function that the program calls; all futures are done at once."""
    numbers = iter(range(1, 1_000_000))

    def number(*_: Any) -> int:
        return next(numbers)

    def nothing(*_: Any) -> None:
        return None

    def same(numbers: list[int]) -> list[int]:
        return list(numbers)

    core = SimpleNamespace(
        get_arg=list, get_env=list, send=nothing, receive=number, set_result=nothing,
        sleep=number, wait=same, await_message=lambda _: ("message", "", []),
        await_number=lambda _: 7, cancel=nothing, create_queue=number, destroy_queue=nothing,
        available_models=lambda: ["rehearsal"], get_model_info=lambda _: json.dumps(INFO),
        synchronize=number, drop=nothing,
    )  # fmt: skip
    allocate = SimpleNamespace(
        Memory=dict.fromkeys(("KVPAGE", "EMB", "RESERVED_KVPAGE")),
        alloc=lambda _queue, _kind, count: next(numbers) * 1000, dealloc=nothing,
        copy_kvpage=nothing, copy_emb=nothing, trim_kvpage=nothing,
    )  # fmt: skip
    tokenize = SimpleNamespace(
        tokenize=lambda _queue, text, _special: [ord(letter) for letter in text], create_detokenizer=number,
        push_tokens=lambda _detokenizer, tokens: "x", detokenize=lambda *_: "text",
    )  # fmt: skip
    fused = SimpleNamespace(
        create_sampler=number, sample=number,
        continue_with_dist=lambda *_: DIST, take_text=lambda *_: (7, "x"), decode=number, watch_run=nothing,
        take_run=lambda *_: ([7], ["x"], False, ""),
    )  # fmt: skip
    exports = SimpleNamespace(import_prefix=number, await_prefix=lambda _: (0, 0), export_prefix=number)
    return SimpleNamespace(
        http=None, topics=None, children=None, input_image=None, exports=exports, grammar=None, embedding=None,
        blobs=None, core=core, allocate=allocate, tokenize=tokenize, fused=fused, state=None, guest_source=None,
        output_text=SimpleNamespace(get_next_dist=number, await_dists=lambda _: DIST),
        forward=SimpleNamespace(forward=number), input_text=SimpleNamespace(embed_txt=nothing),
    )  # fmt: skip


HOST = _host()
"""Made at build time: an instance would have to write all of it."""


def rehearse(*programs: str) -> None:
    """Runs programs of this module, one after the other, then restores the bindings."""
    real = SimpleNamespace(**{name: getattr(bindings, name) for name in bindings.INTERFACES})
    error = bindings.HostError
    bindings.install(HOST, error)
    try:
        for text in programs:
            program.run_program("rehearsal.py", "", CODES[text])
    finally:
        bindings.install(real, error)
