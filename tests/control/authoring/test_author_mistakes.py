"""What authors do wrong at first, and what they are told: the line, the call with its arguments, what to do."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from pie_control.errors import BadProgram
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import launch, started

IMPORTS = "import asyncio\nfrom inferlet_sdk import *\nfrom inferlet_sdk.tools.events import Call\n"
CTX = "ctx = Context(args.model).fill('Hi')\n"
TOOL = "def add(a: int, b: int) -> int:\n    '''Adds.'''\n    return a + b\n"
CALLED = "    return await Tools({}).run(Call(0, '{}', {}, ''), raise_errors=True)\n"

MISTAKES: dict[str, tuple[str, str]] = {
    "result not awaited": (f"async def main(args):\n    {CTX}    return ctx.generate_until(max_tokens=3)\n",
        r"the result \(coroutine\) cannot be sent .* write `await`"),
    "text not awaited": (f"async def main(args):\n    {CTX}    await args.send('got ' + ctx.generate_until())\n",
        r"(?s)line 6.*concatenate.*was not awaited: write `await"),
    "iteration not awaited": (f"async def main(args):\n    {CTX}    for one in ctx.generate_until():\n        pass\n",
        r"(?s)line 6, .*not iterable.*was not awaited: write `await"),
    "message not awaited": ("async def main(args):\n    Context(args.model).fill(args.receive())\n",
        r"(?s)line 5, .*in the call Context\.fill\(text=<.*not a HostFuture that was not awaited: write `await"),
    "a task of a call": ("async def main(args):\n    asyncio.create_task(args.receive())\n",
        r"(?s)line 5, .*got <inferlet_sdk.futures.HostFuture.*a task by `asyncio.ensure_future\(\.\.\.\)`"),
    "await of what gives no future": ("async def main(args):\n    await Context(args.model).fill('Hi')\n",
        r"(?s)line 5, .*this call needs no `await`: leave it out"),
    "a number as text": ("async def main(args):\n    Context(args.model).fill(42)\n",
        r"(?s)fill\(text=42\).*text: give text, or a list of token ids, not int 42"),
    "a text as number": (f"async def main(args):\n    {CTX}    await ctx.generate_until(max_tokens='ten')\n",
        r"(?s)generate_until\(max_tokens='ten'\).*max_tokens: give a whole number, not str 'ten'"),
    "bytes as message": ("async def main(args):\n    await args.send(b'bytes')\n",
        r"(?s)Args\.send\(text=b'bytes'\).*give text \(`json\.dumps` turns values into text\), not bytes"),
    "an unknown model": ("async def main(args):\n    Context('gpt-7').fill('Hi')\n",
        r"(?s)Context\(model='gpt-7'\).*no model 'gpt-7'; this server has fake, others"),
    "a long prompt": ("async def main(args):\n    ctx = Context(args.model).fill('word ' * 1000)\n"
        "    return await ctx.generate_until(max_tokens=3)\n",
        r"(?s)line 6.*the context has 5000 tokens, and fake takes at most 4096: fill less"),
    "a misspelt option": (f"async def main(args):\n    {CTX}    ctx.generate(max_token=3)\n",
        r"(?s)Context\.generate\(max_token=3\).*no argument 'max_token': did you mean 'max_tokens'\?"),
    "an option of samplers": (f"async def main(args):\n    {CTX}    await ctx.generate_until(temperature=0.5)\n",
        r"generate takes no argument 'temperature': write sampler=Sampler\(temperature=\.\.\.\)"),
    "an option of nothing": (f"async def main(args):\n    {CTX}    await ctx.generate_until(wibble=1)\n",
        r"no argument 'wibble': there are max_tokens, sampler, stop, .*schema, regex, grammar"),
    "a temperature below 0": (f"async def main(args):\n    {CTX}"
        "    await ctx.generate_until(sampler=Sampler(temperature=-1))\n",
        r"(?s)generate_until\(sampler=Sampler.*temperature is -1.0; it must lie between"),
    "a wrong regular expression": (f"async def main(args):\n    {CTX}    await ctx.generate_until(regex='(a')\n",
        r"(?s)generate_until\(regex='\(a'\).*the regular expression is wrong"),
    "an argument that a tool lacks": (
        TOOL + "async def main(args):\n" + CALLED.format("add", "add", "{'a': 1, 'c': 2}"),
        r"(?s)Tools\.run\(call=Call\(number=0.*\"b\" is missing: expected an integer"),
    "a tool without types": ("def add(a, b):\n    return a + b\nasync def main(args):\n    return len(Tools(add))\n",
        r"(?s)line 7, .*Tools\(<function add .*parameter 'a' has no annotation, as in `a: int`"),
    "a tool that gives bytes": ("def when() -> object:\n    '''Tells.'''\n    return b'x'\nasync def main(args):\n"
        + CALLED.format("when", "when", "{}"),
        r"a tool gave bytes, which a model cannot read: return text, or what JSON has"),
    "a type that JSON lacks": (f"async def main(args):\n    {CTX}    return await ctx.generate_as(complex)\n",
        r"(?s)generate_as\(kind=<class 'complex'>\).*complex cannot be read from JSON: there are str, int"),
    "a closed context": (f"async def main(args):\n    {CTX}    ctx.close()\n    await ctx.generate_until()\n",
        r"(?s)line 7, .*the context is closed: make a new one, or fork before closing"),
    "an empty context": ("async def main(args):\n    return await Context(args.model).generate_until(max_tokens=3)\n",
        r"the context is empty: `fill` it before generating"),
    "two generations at once": (f"async def main(args):\n    {CTX}"
        "    await gather(ctx.generate_until(max_tokens=30), ctx.generate_until(max_tokens=30))\n",
        r"`generate` cannot begin while a `generate` of the same context waits .*await that first, or fork"),
    "a dropped child": ("async def main(args):\n    if args.argv:\n        return\n    child = launch(None, 'x')\n"
        "    child.close()\n    return await child\n",
        r"(?s)line 9, .*child"),
    "an unknown child": ("async def main(args):\n    await launch('none-such')\n",
        r"(?s)line 5, .*no program 'none-such': upload it first"),
    "a child that fails": ("async def main(args):\n    if args.argv:\n        raise ValueError('the child broke')\n"
        "    return await launch(None, 'x')\n", r"the child broke"),
    "an unknown limit of a child": ("async def main(args):\n    await launch(None, pages=3)\n",
        r"main has no parameter 'pages'"),
    "async forgotten": (f"def main(args):\n    {CTX}    return await ctx.generate_until()\n",
        r"(?s)line 6\n *return await ctx.*outside async function.*make the function around it an `async def`"),
    "numpy": ("import numpy as np\nasync def main(args):\n    return 1\n",
        r"line 4: the sandbox has no module 'numpy'; .*'numpy' has compiled parts"),
    "requests": ("import requests\nasync def main(args):\n    return 1\n",
        r"the sandbox has no module 'requests'; .*use `http_get` and `http_post` of inferlet_sdk"),
    "a file": ("async def main(args):\n    return open('data.json').read()\n",
        r"(?s)line 5, .*'data.json'.*the sandbox has no files: .*`program_files\(\)`"),
    "a thread": ("import threading\nasync def main(args):\n    threading.Thread(target=print).start()\n",
        r"an inferlet has no threads: `asyncio.create_task` or `gather`"),
    "standard input": ("async def main(args):\n    return input()\n",
        r"an inferlet has no stdin: `await args\.receive\(\)`"),
    "a server that is not allowed": ("async def main(args):\n    await http_get('https://a.example')\n",
        r"(?s)http_get\(url='https://a.example'\).*its operator can allow them by name, as in --http-allow a.example"),
    "a loop without end": ("async def main(args):\n    while True:\n        pass\n",
        r"used more than 1 s of processor time: does a loop have no end\? \(--cpu-seconds\)"),
    "a lock taken twice": (
        "async def main(args):\n    lock = asyncio.Lock()\n    async with lock, lock:\n        pass\n",
        r"(?s)Deadlock: every task waits for another.*main \(line 6 of test\.py\)"),
    "too much memory": (
        "async def main(args):\n    found = []\n    while True:\n        found.append(bytes(10 << 20))\n",
        r"(?s)line 7, .*MemoryError\n *keep less at a time; `traits.usage\(\).max_memory_bytes`"),
    "asyncio.run in a coroutine": ("async def main(args):\n    return asyncio.run(asyncio.sleep(0))\n",
        r"write `await \.\.\.` instead of `asyncio.run\(\.\.\.\)`"),
    "bytes as result": ("async def main(args):\n    return b'x'\n",
        r"the result \(bytes\) cannot be sent as JSON: .*; return text, numbers, lists, dicts, sets, dataclasses"),
    "an object within a result": ("async def main(args):\n    return {'found': [1, Context(args.model)]}\n",
        r"the result\['found'\]\[1\], a Context, is at fault; return text"),
    "a socket": ("import socket\nasync def main(args):\n    socket.create_connection(('a.example', 80))\n",
        r"(?s)line 6, .*an inferlet has no sockets: `http_get` and `http_post` of inferlet_sdk ask servers"),
    "a stream of asyncio": ("async def main(args):\n    await asyncio.open_connection('a.example', 80)\n",
        r"(?s)line 5, .*an inferlet has no sockets: `http_get`"),
    "a process": ("import subprocess\nasync def main(args):\n    subprocess.check_output(['ls'])\n",
        r"(?s)line 6, .*wasi does not support processes.*do that in a client of the inferlet"),
    "a command of the system": ("import os\nasync def main(args):\n    os.system('ls')\n",
        r"(?s)line 6, .*no attribute 'system'.*the sandbox has no operating system: do that in a client"),
    "a value of 10 GB": ("async def main(args):\n    bytearray(10_000_000_000)\n",
        r"(?s)line 5, .*a program has less than 4 GiB of memory: keep less at a time"),
    "main called by the program": ("async def main(args):\n    pass\nasyncio.run(main())\n",
        r"(?s)line 6, .*the server calls `main`: leave this call out"),
    "a name that the SDK lacks": ("from inferlet_sdk import Temperature\nasync def main(args):\n    pass\n",
        r"(?s)line 4, .*`pie check FILE` tells which names there are"),
    "a call that a context lacks": (f"async def main(args):\n    {CTX}    await ctx.complete()\n",
        r"(?s)line 6, .*no attribute 'complete'.*`pie check FILE` tells which calls there are"),
    "an argument of the launch": ("async def main(args):\n    return args['topic']\n",
        r"(?s)line 5, .*not subscriptable.*arguments of the launch are parameters of `main`"),
    "the tools of tests": ("from inferlet_sdk.testing import run\nasync def main(args):\n    pass\n",
        r"line 4: the sandbox has no module 'inferlet_sdk.testing'; .*that is for tests: `pie test` runs them"),
    "no entry": ("async def run(args):\n    return 1\n",
        r"test has no entry: decorate a function with @inferlet, or name it `main`"),
}  # fmt: skip
"""A program, and what its author must be told."""


@pytest.fixture(scope="module")
def told(guest_cache: Path) -> dict[str, str]:
    """What each program says at its end."""

    async def main() -> dict[str, str]:
        options = {"cpu_seconds": 1.0, "hosts": 0, "memory_bytes": 96 << 20}
        async with started(guest_cache, InProcessClient(FakeModel()), **options) as server:
            said = {}
            for name, (source, _) in MISTAKES.items():
                try:
                    _, listener = await launch(server, IMPORTS + source)
                except BadProgram as error:
                    said[name] = str(error)
                else:
                    ended = await asyncio.wait_for(listener.ended, HANG_SECONDS)
                    said[name] = ended.error or f"no error: {ended.result}"
            return said

    return asyncio.run(main())


@pytest.mark.parametrize("name", MISTAKES)
def test_the_author_is_told_what_is_wrong_and_what_to_do(told: dict[str, str], name: str) -> None:
    assert re.search(MISTAKES[name][1], told[name]), told[name]
    assert "\x1b" not in told[name]
