"""What `pie check` finds, and that it finds nothing in programs that are right."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path

import pytest

from inferlet_sdk.guest.packages.package import PURE
from pie_control.authoring.check import check
from pie_control.authoring.new import make
from pie_control.cli.main import main
from pie_control.errors import BadRequest
from tests.helpers.tree import ROOT

BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
DOCS = [ROOT / "docs" / name for name in ("inferlets.md", "sdk.md", "adapters.md")]
RIGHT = [code for doc in DOCS for code in BLOCK.findall(doc.read_text())]
RIGHT += [path.read_text() for path in (ROOT / "examples" / "inferlets").glob("*/*.py") if path.name != "check.py"]

START = "import asyncio, time\nfrom inferlet_sdk import *\nfrom inferlet_sdk import traits\n"
MAIN = START + "async def main(args):\n    ctx = Context(args.model)\n    {}\n"
PLAIN = START + "def main(args):\n    ctx = Context(args.model)\n    {}\n"
WRONG = [
    ("from inferlet_sdk import Contxt\ndef main(args): ...", 1, "has no `Contxt`", "do you mean `Context`?"),
    ("import inferlet_sdk as pie\ndef main(args):\n    pie.Contex()", 3, "has no `Contex`", "`Context`"),
    ("from inferlet_sdk.traits import forwrd\ndef main(args): ...", 1, "has no `forwrd`", "`forward`"),
    (MAIN.format("traits.alloc_kvpages(ctx, 1)"), 6, "has no `alloc_kvpages`", "`alloc_kvpage`"),
    (MAIN.format("ctx.fil('x')"), 6, "Context has no `fil`", "do you mean `fill`?"),
    (MAIN.format("args.sned('x')"), 6, "Args has no `sned`", "do you mean `send`?"),
    (MAIN.format("await ctx.fork().generate_untill()"), 6, "Context has no `generate_untill`", "`generate_until`"),
    (MAIN.format("g = ctx.generate()\n    print(g.stop_raeson)"), 7, "Generation has no", "`stop_reason`"),
    (MAIN.format("print(ctx.model.page_sise)"), 6, "ModelInfo has no `page_sise`", "`page_size`"),
    (MAIN.format("await ctx.next_dist(temp=5)"), 6, "unexpected keyword argument 'temp'", "temperature"),
    (
        MAIN.format("await ctx.generate_until(max_token=5)"),
        6,
        "unexpected keyword argument 'max_token'",
        "`max_tokens`",
    ),
    (
        MAIN.format("await ctx.generate_until(temperature=5)"),
        6,
        "argument 'temperature'",
        "sampler=Sampler(temperature=",
    ),
    (MAIN.format("await ctx.generate_until(wibble=5)"), 6, "unexpected keyword argument 'wibble'", "regex, grammar"),
    (MAIN.format("await http_get('x', parms={})"), 6, "unexpected keyword argument 'parms'", "`params`"),
    (MAIN.format("await http_get('x', json={})"), 6, "unexpected keyword argument 'json'", "timeout"),
    (PLAIN.format("await ctx.flush()"), 6, "'await' outside async function", "an `async def`"),
    ("import requests\ndef main(args): ...", 1, "no module 'requests'", "`http_get`"),
    ("import jsonschema\ndef main(args): ...", 1, "no module 'jsonschema'", "pure-Python wheel of 'jsonschema'"),
    (MAIN.format("ctx.fill()"), 6, "missing a required argument: 'text'", "fill(text"),
    (MAIN.format("ctx.fill('a', 'b')"), 6, "too many positional arguments", "special_tokens"),
    (MAIN.format("Sampler(temprature=1.0)"), 6, "unexpected keyword argument 'temprature'", "temperature"),
    (MAIN.format("traits.tokenize(ctx)"), 6, "missing a required argument: 'text'", "tokenize(queue"),
    (MAIN.format("ctx.flush()"), 6, "`Context.flush` is never awaited", "write `await` in front"),
    (MAIN.format("asyncio.sleep(1)"), 6, "`sleep` is never awaited", "write `await`"),
    (MAIN.format("ctx.generate(max_tokens=3)"), 6, "this generation is never used", "`async for`"),
    (MAIN.format("text = ctx.generate_until()\n    await args.send(text)"), 7, "is not awaited here", "`await`"),
    (MAIN.format("print(ctx.generate_until())"), 6, "is not awaited here", "`await`"),
    (MAIN.format("return 'a' + ctx.generate_until()"), 6, "is not awaited here", "`await`"),
    (MAIN.format("return ctx.generate_until(5)"), 6, "is returned before it is awaited", "`await`"),
    (MAIN.format("return ctx.generate(5)"), 6, "a generation is no result", "await args.stream"),
    (MAIN.format("ctx.next_dist().max_index()"), 6, "needs an await", "(await ...)"),
    (MAIN.format("for piece in ctx.generate():\n        pass"), 6, "a generation blocks here", "`async for`"),
    (MAIN.format("async for piece in ctx.generate_until():\n        pass"), 6, "nothing to iterate", "`await`"),
    (MAIN.format("await ctx.fill('x')"), 6, "`await` of a Context", "leave `await` out"),
    (MAIN.format("await ctx.generate()"), 6, "`await` of a Generation", "args.stream"),
    (MAIN.format("await ctx.flush"), 6, "a function that is not called", "leave"),
    (MAIN.format("time.sleep(1)"), 6, "`time.sleep` blocks the whole program", "asyncio.sleep"),
    (MAIN.format("asyncio.run(main(args))"), 6, "`asyncio.run` cannot run inside", "`await`"),
    (MAIN.format("asyncio.to_thread(print)"), 6, "no threads", "call the function directly"),
    (MAIN.format("import threading\n    threading.Thread(target=print)"), 7, "no threads", "create_task"),
    (
        MAIN.format("from concurrent.futures import ThreadPoolExecutor\n    ThreadPoolExecutor()"),
        7,
        "`concurrent.ThreadPoolExecutor` fails: an inferlet has no threads",
        "create_task",
    ),
    (MAIN.format("import socket\n    socket.create_connection(('x', 80))"), 7, "no sockets", "`http_get`"),
    (MAIN.format("import urllib.request\n    urllib.request.urlopen('x')"), 7, "no sockets", "`http_get`"),
    (MAIN.format("import subprocess\n    subprocess.check_output(['ls'])"), 7, "no processes", "client"),
    (MAIN.format("pass") + "if __name__ == '__main__':\n    asyncio.run(main())", 8, "calls `main`", "leave this call"),
    (MAIN.format("name = input()"), 6, "`input` fails: an inferlet has no stdin", "args.receive()"),
    (MAIN.format("open('x')"), 6, "`open` fails: the sandbox has no files", "program_files()"),
    (MAIN.format("breakpoint()"), 6, "no terminal", "pie run --native"),
    (PLAIN.format("ctx.flush()"), 6, "`Context.flush` is never awaited", "make `main` an `async def`"),
    (START + "async def help():\n    pass\nasync def main(args):\n    help()", 7, "`help` is never awaited", "`await`"),
    ("import numpy\ndef main(args): ...", 1, "the sandbox has no module 'numpy'", "has compiled parts"),
    ("import ssl\ndef main(args): ...", 1, "no module 'ssl'", "use what it has"),
    ("def main(args):\n    import requests", 2, "no module 'requests'", "`http_get`"),
    ("x = 1", 1, "the program has no entry", "decorate a function with @inferlet"),
    (START + "@inferlet\ndef a(args): ...\n@inferlet\ndef b(args): ...", 5, "several functions", "line 7"),
    ("def main(args:\n    pass", 1, "SyntaxError", "no Python"),
    (
        START + "@inferlet\nasync def story(handle, ctx: Context):\n    handle.snd('x')\n    ctx.forck()",
        6,
        "Args has no `snd`",
        "`send`",
    ),
    (
        START + "class A:\n    async def go(self, c: Context):\n        c.flush()\ndef main(args): ...",
        6,
        "never awaited",
        "`",
    ),
    (MAIN.format("with Context() as other:\n        other.flus()"), 7, "Context has no `flus`", "`flush`"),
]


def written(folder: Path, text: str) -> Path:
    path = folder / "program.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize(("text", "line", "message", "advice"), WRONG)
def test_mistakes_are_found(text: str, line: int, message: str, advice: str, tmp_path: Path) -> None:
    found = [each for each in check(written(tmp_path, text)) if message in each.message]
    assert [each.line for each in found] == [line], check(tmp_path / "program.py")
    assert advice in found[0].advice
    source = text.splitlines()[line - 1].strip()
    assert found[0].source == source


@pytest.mark.parametrize("text", RIGHT, ids=range(len(RIGHT)))
def test_nothing_is_found_in_examples_and_docs(text: str, tmp_path: Path) -> None:
    assert check(written(tmp_path, text)) == []


@pytest.mark.parametrize(
    "body",
    [
        "task = ctx.generate_until()\n    return await task",
        "return await gather(*(fork.generate_until() for fork in [ctx.fork()]))",
        "ctx = args\n    ctx.whatever()",
        "open = print\n    open('x')",
        "try:\n        import numpy\n    except ImportError:\n        pass",
        "x = ctx if args.argv else args\n    x.anything()",
        "args.send('without await')",
        "async with asyncio.timeout(1):\n        await ctx.flush()",
        "ctx.fill(*['a'], **{})",
        "for ctx in [1]:\n        ctx.bit_length()",
        "async def inner():\n        yield 1\n    async for one in inner():\n        print(one)",
    ],
)
def test_nothing_is_found_in_what_may_be_right(body: str, tmp_path: Path) -> None:
    assert check(written(tmp_path, MAIN.format(body))) == []


@pytest.mark.parametrize(
    "text",
    [
        "async def work(args):\n    return 1\ndef main(args):\n    return work(args)",
        START
        + "@inferlet\nasync def story(args):\n    return main(2)\ndef main(thing):\n    return thing.bit_length()",
        START + "def main(thing):\n    return thing.bit_length()\nmain(1)\ninferlet(lambda args: 1)",
        START + "async def work(args):\n    return 1\ninferlet(work)",
    ],
)
def test_nothing_is_found_in_entries_that_are_right(text: str, tmp_path: Path) -> None:
    assert check(written(tmp_path, text)) == []


@pytest.mark.parametrize("module", ["cgi", "imp", "telnetlib", "distutils.core", "asyncore"])
def test_modules_that_the_sandbox_s_python_has_no_more_are_found(module: str, tmp_path: Path) -> None:
    (found,) = check(written(tmp_path, f"import {module}\ndef main(args): ..."))
    assert (found.message, "has it no more" in found.advice) == (f"the sandbox has no module {module!r}", True)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="nothing is newer")
@pytest.mark.parametrize(
    "line",
    [
        "    try: ...\n    except A, B: ...",
        "    return t'{args}'",
        "    return f'{args['a' 'b']}', 1 1",
        '    return f"""\n{\n# words\nargs}\n"""',
    ],
)
def test_newer_syntax_is_no_mistake(line: str, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"cannot check newer syntax.*has 3\.14"):
        check(written(tmp_path, f"def main(args):\n{line}\n"))


def test_a_helper_may_have_a_main(tmp_path: Path) -> None:
    folder = make("story", tmp_path)
    (folder / "tool.py").write_text("def main(options):\n    options.verbose = 1\n    return options.rest\nmain(1)\n")
    assert check(folder) == []


def test_a_folder_is_one_program(tmp_path: Path) -> None:
    folder = make("story", tmp_path)
    assert check(folder) == []
    (folder / "words.py").write_text("from inferlet_sdk import Context\ndef of(ctx: Context):\n    ctx.fil('x')\n")
    (folder / "main.py").write_text("import words\nfrom absent import thing\ndef main(args):\n    words.of(1)\n")
    found = [(each.file, each.line, each.message) for each in check(folder)]
    assert found == [
        ("main.py", 2, "the sandbox has no module 'absent'"),
        ("words.py", 3, "Context has no `fil`"),
    ]
    with pytest.raises(BadRequest, match="no main"):
        check(tmp_path)


def test_what_an_upload_refuses_in_wheels_is_found(tmp_path: Path) -> None:
    folder = make("story", tmp_path)
    with zipfile.ZipFile(folder / "fast.whl", "w") as content:
        content.writestr("fast/__init__.py", "")
        content.writestr("fast/core.so", b"")
    (folder / "broken.whl").write_bytes(b"nothing")
    found = [(each.file, each.message, each.advice) for each in check(folder)]
    assert found == [
        ("broken.whl", "this is no wheel that can be read", "download it again"),
        ("fast.whl", "the wheel has compiled code (fast/core.so), which cannot run here", PURE),
    ]
    for name in ("story.zip", "story.whl", "story.wasm"):
        (tmp_path / name).write_bytes(b"PK")
        with pytest.raises(BadRequest, match="is no source"):
            check(tmp_path / name)


def test_the_command_prints_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "from inferlet_sdk import Context\ndef main(args):\n    Context().fil('x')\n")
    assert main(["check", str(path)]) == 1
    printed = capsys.readouterr().out
    assert printed == ("program.py:3:5: Context has no `fil`\n    Context().fil('x')\n    do you mean `fill`?\n")
    assert main(["check", "--json", str(path)]) == 1
    (finding,) = json.loads(capsys.readouterr().out)
    assert (finding["line"], finding["column"], finding["message"]) == (3, 5, "Context has no `fil`")
    assert main(["check", str(written(tmp_path, "def main(args):\n    return 1\n"))]) == 0
    assert main(["check", str(tmp_path / "gone.py")]) == 2


def test_nothing_of_a_program_is_executed(tmp_path: Path) -> None:
    path = written(tmp_path, f"open({str(tmp_path / 'made')!r}, 'w')\nimport program\ndef main(args): ...\n")
    check(path)
    assert not (tmp_path / "made").exists()
