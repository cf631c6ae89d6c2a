"""Running program texts: entries, arguments, results, tracebacks."""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferlet_sdk.guest.command_line import Binding, UsageError, parameters_of
from inferlet_sdk.guest.program import ProgramFailed, run_program
from pie_control.inferlets import mailbox
from pie_control.registry import outbox
from tests.helpers.native_host import NativeHost, install


def launch(text: str, *argv: str, **environment: str) -> NativeHost:
    host = install(argv, environment)
    run_program("prog.py", text)
    return host


def failure(text: str, *argv: str, **environment: str) -> str:
    with pytest.raises(ProgramFailed) as caught:
        launch(text, *argv, **environment)
    return str(caught.value)


PAPER_LOOP = """
from inferlet_sdk import Context, inferlet

@inferlet
async def main(args):
    ctx = Context(args.model)
    ctx.fill("Hello, ")
    async for piece in ctx.generate(max_tokens=10):
        await args.send(piece)
"""


def test_the_loop_of_the_paper() -> None:
    host = launch(PAPER_LOOP)
    assert len(host.sent) > 3
    assert host.result is None


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("def main(args): return args.argv", ["x", "y=1"]),
        ("async def main(args): return args.environment['user']", "default"),
        ("def main(): return 5", 5),
        ("from inferlet_sdk import inferlet\ndef main(args): return 1\n@inferlet\ndef other(args): return 2", 2),
        ("from inferlet_sdk import *\nasync def task(args): return args.model\ninferlet(task)", "toy"),
        ("import asyncio\nasync def f(): return [1]\ndef main(args): return asyncio.run(f())", [1]),
        ("raise SystemExit", None),
        ("from inferlet_sdk import traits\ndef main(args): traits.set_result(7)", 7),
        ("import datetime\ndef main(args): return {datetime.date(2026, 1, 2)}", ["2026-01-02"]),
        ("import sys\ndef main(args): sys.exit(0)", None),
    ],
)
def test_entries_and_results(text: str, result: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncio.run", __import__("inferlet_sdk.event_loop").event_loop.run)
    assert launch(text, "x", "y=1").result == result


def test_a_launch_chooses_the_model() -> None:
    text = "from inferlet_sdk import *\nasync def main(args): return Context().model.name == args.model"
    assert launch(text).result
    assert "there is no model 'other'" in failure(text, model="other")


def test_send_works_with_and_without_await() -> None:
    text = "async def main(a):\n    a.send('1')\n    await a.send('2')\n    a.log('x', 'debug')"
    assert launch(text).sent == ["1", "2"]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> NativeHost:
    """A host whose client is slow: at most two messages wait for it."""
    monkeypatch.setattr(outbox, "TOLD_BYTES", 0)
    monkeypatch.setattr(mailbox, "IN_FLIGHT_BYTES", 0)
    monkeypatch.setattr(mailbox, "UNREAD_BYTES", 0)
    monkeypatch.setattr(mailbox, "MAX_KEPT_BYTES", 2 * mailbox.EVENT_BYTES)
    monkeypatch.setattr("inferlet_sdk.traits.core._going", None)
    return install(max_message_bytes=100)


MESSAGES = [str(number) for number in range(10)]


@pytest.mark.parametrize(
    ("text", "waits"),
    [
        ("def main(args):\n    for n in range(10): args.send(str(n))", 10),
        ("async def main(args):\n    for n in range(10): await args.send(str(n))", 10),
        ("async def main(args):\n    for n in range(10): args.send(str(n))", 9),
        (
            "import asyncio\nasync def main(args):\n    await asyncio.gather(*(args.send(str(n)) for n in range(10)))",
            10,
        ),
    ],
    ids=["plain", "awaited", "not awaited", "gathered"],
)
def test_a_sender_waits_for_a_slow_client(slow: NativeHost, text: str, waits: int) -> None:
    run_program("p", text)
    assert slow.sent == MESSAGES
    assert slow.calls.count("await_number") == waits
    assert slow.futures == 10 - waits  # all that were awaited were taken


def test_many_tasks_that_send_wait_for_each_other(slow: NativeHost) -> None:
    text = """
import asyncio
async def say(args, n):
    await args.send(str(n))
async def main(args):
    await asyncio.gather(*(say(args, n) for n in range(10)))
"""
    run_program("p", text)
    assert slow.sent == MESSAGES


def test_a_message_that_never_fits_is_refused_and_one_that_is_given_up_is_sent(slow: NativeHost) -> None:
    text = """
import asyncio
from inferlet_sdk.errors import QuotaExceeded
async def say(args, text):
    await args.send(text)
async def main(args):
    task = asyncio.create_task(say(args, "given up"))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await args.send("goes")
    try:
        await args.send("refused" * 100)
    except QuotaExceeded:
        return "refused"
"""
    run_program("p", text)
    assert slow.sent == ["given up", "goes"]
    assert slow.result == "refused"


def test_receive() -> None:
    host = install()
    host.post("a")
    host.post("b")
    run_program("p", "async def main(args): return await args.receive() + await args.receive()")
    assert host.result == "ab"


def test_a_module_level_dataclass_finds_its_module() -> None:
    text = "import dataclasses\n@dataclasses.dataclass\nclass A:\n    x: 'int' = 1\ndef main(a): return A().x"
    assert launch(text).result == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "no entry: decorate a function with @inferlet"),
        ("def main(a): return b''", "result (bytes) cannot be sent as JSON"),
        ("def main(a): return {'a': [1, {2, b''}]}", "the result['a'][1]["),
        (
            "def main(a): return {'a': [1, float('inf')]}",
            "$['a'][1] is inf, which is no number of JSON: give null (None)",
        ),
        ("import sys\ndef main(a): sys.exit(3)", "exited with code 3"),
        ("import sys\ndef main(a): sys.exit('no luck')", "no luck"),
        ("import sys\ndef main(a): sys.exit('\\ud800')", "\\ud800"),
    ],
)
def test_failures_say_what_to_do(text: str, message: str) -> None:
    assert message in failure(text)


def test_syntax_errors_show_the_line() -> None:
    assert failure("x = (\n").startswith('  File "prog.py", line 1\n    x = (')


def test_tracebacks_show_the_program_and_its_lines() -> None:
    text = "from inferlet_sdk import Context\nasync def main(args):\n    def inner(): Context('nope')\n    inner()\n"
    trace = failure(text)
    assert 'File "prog.py", line 4, in main\n    inner()' in trace
    assert "Context('nope')" in trace
    assert trace.endswith("NotFound: there is no model 'nope'; this server has toy, others by another --model")
    assert "program.py" not in trace
    assert trace.count("inferlet_sdk/") <= 1


def test_tracebacks_of_groups_and_causes_are_trimmed() -> None:
    text = (
        "import asyncio\n"
        "async def bad():\n    try: 1/0\n    except ZeroDivisionError as e: raise ValueError('v') from e\n"
        "async def main(args):\n    async with asyncio.TaskGroup() as g:\n        g.create_task(bad())\n"
    )
    trace = failure(text)
    assert "ZeroDivisionError" in trace
    assert "ValueError: v" in trace
    assert "event_loop.py" not in trace


def test_output_is_flushed(capsys: pytest.CaptureFixture[str]) -> None:
    launch("print('top')\ndef main(args): print('hi', end='')")
    assert capsys.readouterr().out == "top\nhi"


# ---- arguments ----

PROGRAM = """
from __future__ import annotations
async def main(
    args, topic: str, points: int = 3, *, ratio: float = 0.5, loud: bool = False, tags: list[str] | None = None
):
    return [topic, points, ratio, loud, tags]
"""


@pytest.mark.parametrize(
    ("argv", "result"),
    [
        (["topic=a b"], ["a b", 3, 0.5, False, None]),
        (["--topic", "a", "--points=5"], ["a", 5, 0.5, False, None]),
        (["a", "7", "ratio=1e-1"], ["a", 7, 0.1, False, None]),
        (["--loud", "a"], ["a", 3, 0.5, True, None]),
        (["--loud", "no", "a"], ["a", 3, 0.5, False, None]),
        (["a", 'tags=["x"]'], ["a", 3, 0.5, False, ["x"]]),
        (["a", "--tags", "x, y"], ["a", 3, 0.5, False, ["x", "y"]]),
        (["--tags", "x", "a", "tags=y,z", '--tags=["v,w"]'], ["a", 3, 0.5, False, ["x", "y", "z", "v,w"]]),
        (["a", "--no-loud"], ["a", 3, 0.5, False, None]),
        (["--topic=--loud", "--", "7"], ["--loud", 7, 0.5, False, None]),
        (["--", "--loud", "7"], ["--loud", 7, 0.5, False, None]),
        (["x=1 is text"], ["x=1 is text", 3, 0.5, False, None]),
        (["--", "topics=a"], ["topics=a", 3, 0.5, False, None]),
    ],
)
def test_arguments_fill_parameters_by_their_types(argv: list[str], result: list[Any]) -> None:
    assert launch(PROGRAM, *argv).result == result


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "missing: topic"),
        (["a", "x"], 'points: expected an integer, got "x"'),
        (["a", "--loud=maybe"], 'loud: expected true or false, got "maybe"'),
        (["a", "--colour", "red"], "unknown option --colour"),
        (["topic=a", "topic=b"], "topic is given twice"),
        (["a", "--loud", "--no-loud"], "loud is given twice"),
        (["--topics", "a"], "unknown option --topics; do you mean --topic?"),
        (["topics=a"], "unknown argument topics=a; do you mean topic=? All behind `--` are plain words"),
        (["a", "--points"], "--points needs a value"),
        (["a", "1", "extra"], "unexpected argument 'extra'"),
        (["a", "--no-loud=yes"], "unknown option --no-loud=yes"),
        (["a", "--no-points"], "unknown option --no-points"),
        (["--topic", "--loud"], "--topic needs a value; one that begins with -- is given by --topic=VALUE"),
    ],
)
def test_wrong_arguments_show_the_usage(argv: list[str], message: str) -> None:
    text = failure(PROGRAM, *argv)
    assert message in text
    assert "usage: prog.py topic=str [points=int] [ratio=float] [loud=bool] [tags=list[str]]" in text


def test_keyword_arguments_of_the_client_arrive_by_name() -> None:
    assert launch(PROGRAM, kwargs='{"topic": "t", "tags": ["a"]}').result == ["t", 3, 0.5, False, ["a"]]
    assert launch(PROGRAM, "9", kwargs='{"topic": "t"}').result[:2] == ["t", 9]
    assert launch("def main(args, **options): return options", kwargs='{"x": 1}').result == {"x": 1}


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ('{"topic": "t", "nope": 1}', "main has no parameter 'nope'\n"),
        ('{"topic": "t", "point": 1}', "main has no parameter 'point'; do you mean points?"),
        ("{", "'kwargs' is not JSON"),
        ("[]", "must be a JSON object"),
        ("{}", "missing: topic"),
        ('{"topic": 5}', "topic: expected a string, got 5"),
        ('{"topic": "t", "points": "many"}', 'points: expected an integer, got "many"'),
        ('{"topic": "t", "tags": ["x", 1]}', "tags[1]: expected a string, got 1"),
    ],
)
def test_wrong_keyword_arguments(kwargs: str, message: str) -> None:
    assert message in failure(PROGRAM, kwargs=kwargs)


def test_unannotated_parameters_take_the_type_of_their_default() -> None:
    assert launch("def main(args, n=1, s='x', f=2.5): return [n, s, f]", "4", "5", "6").result == [4, "5", 6.0]


TYPED = """
import enum
from dataclasses import dataclass
from typing import Literal
class Color(enum.Enum):
    RED = "r"
    BLUE = "b"
@dataclass
class Spot:
    x: int
    y: int = 0
def main(args, mode: Literal["fast", "good"] = "fast", color: Color | None = None, sizes: list[int] = [],
         pair: tuple[int, str] | None = None, either: int | str = 0, spot: Spot | None = None,
         *words: int, **rest: float):
    '''Paints.'''
    spot = spot and [spot.x, spot.y]
    return [mode, color and color.name, sizes, pair, either, spot, list(words), rest]
"""


@pytest.mark.parametrize(
    ("argv", "place", "value"),
    [
        (["mode=good"], 0, "good"),
        (["color=r"], 1, "RED"),
        (["--color", "BLUE"], 1, "BLUE"),
        (["sizes=1,2"], 2, [1, 2]),
        (["--sizes", "1", "--sizes", "2, 3"], 2, [1, 2, 3]),
        (["sizes=[4]"], 2, [4]),
        (["sizes="], 2, []),
        (["pair=1,a"], 3, [1, "a"]),
        (["either=5"], 4, 5),
        (["either=five"], 4, "five"),
        (['spot={"x": 1}'], 5, [1, 0]),
        (["good", "r", "1", "2,b", "x", '{"x": 1}', "7", "8"], 6, [7, 8]),
        (["speed=1", "--width", "2.5"], 7, {"speed": 1.0, "width": 2.5}),
    ],
)
def test_words_become_what_annotations_say(argv: list[str], place: int, value: Any) -> None:
    assert launch(TYPED, *argv).result[place] == value


def test_dates_and_sets_are_words() -> None:
    text = "from datetime import *\ndef main(args, when: date, few: set[int]): return [when + timedelta(1), few]"
    assert launch(text, "2026-01-01", "2,1,2").result == ["2026-01-02", [1, 2]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("mode=bad", 'mode: expected one of "fast", "good", got "bad"'),
        ("color=green", 'color: expected one of "r", "b", got "green"'),
        ("sizes=1,x", 'sizes: expected an integer, got "x"'),
        ("sizes=[1, 2.5]", "sizes[1]: expected an integer, got 2.5"),
        ("pair=1", 'pair: expected a list of 2, got "1"'),
        ('spot={"y": 1}', 'spot: "x" is missing: expected an integer'),
        ("spot=1,2", "spot: "),
        ("speed=fast", 'speed: expected a number, got "fast"'),
    ],
)
def test_words_that_do_not_fit_are_told(given: str, message: str) -> None:
    text = failure(TYPED, given)
    assert message in text
    assert "usage: prog.py [mode=fast|good] [color=r|b] [sizes=list[int]]" in text
    assert text.endswith("[words ...] [NAME=VALUE ...]")


PIECES = [
    "mode",
    "sizes",
    "pair",
    "spot",
    "x",
    "no-loud",
    "--",
    "=",
    ",",
    "[",
    "]",
    '"',
    "1",
    "fast",
    "null",
    '{"x": 1}',
    "\ud800",
]
VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=3)


@given(
    words=st.lists(st.lists(st.sampled_from(PIECES), max_size=4).map("".join), max_size=5),
    values=st.dictionaries(st.integers(0, 4), VALUES, max_size=2),
    kwargs=st.dictionaries(st.sampled_from(["mode", "sizes", "spot", "words", "more"]), VALUES, max_size=2),
)
def test_whatever_is_given_fits_or_is_told(words: list[str], values: dict[int, Any], kwargs: dict[str, Any]) -> None:
    namespace: dict[str, Any] = {}
    exec(TYPED, namespace)
    binding = Binding(parameters_of(namespace["main"]))
    with contextlib.suppress(UsageError):
        binding.take(words, values, kwargs)
        assert len(binding.call(namespace["main"], None)()) == 8


def test_values_stand_for_words_by_their_places() -> None:
    assert launch(PROGRAM, "bees", "4", args='{"1": 4}').result == ["bees", 4, 0.5, False, None]
    assert launch(PROGRAM, "--loud", "5", args='{"1": "5"}').result == ["5", 3, 0.5, True, None]
    assert "topic: expected a string, got 5" in failure(PROGRAM, "5", args='{"0": 5}')
    assert "unexpected argument 7" in failure(PROGRAM, "a", "1", "7", args='{"2": 7}')
    words = "def main(args, *words): return [args.argv, words]"
    assert launch(words, "x", "true", args='{"1": true}').result == [["x", "true"], ["x", True]]
    assert launch(words, "x=1", "--", "--y").result[1] == ["x=1", "--y"]
    assert "unknown option --y" in failure(words, "--y")


def test_parameters_by_name_only_take_no_plain_words() -> None:
    text = "def main(args, *words, loud: bool = False): return [words, loud]"
    assert launch(text, "one", "two", "--loud").result == [["one", "two"], True]
    assert launch(text, "one", kwargs='{"loud": true}').result == [["one"], True]
    assert launch("def main(args, a, /, b=2): return [a, b]", "x", "3").result == ["x", 3]


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["bees", "--help"]])
def test_help_tells_usage_docstring_types_and_defaults(argv: list[str]) -> None:
    host = launch(TYPED, *argv)
    assert host.result is None
    lines = "".join(host.sent).splitlines()
    assert lines[0].startswith("usage: prog.py [mode=fast|good]")
    assert lines[1:4] == ["Paints.", "", "  mode    fast|good (default: 'fast')"]
    assert "  words   int; all words that are left" in lines
    assert "  rest    float; all other options" in lines


def test_the_environment_may_name_another_entry() -> None:
    text = "def main(args): return 1\ndef other(args, n: int): return n\nvalue = 3"
    assert launch(text, "5", main="other").result == 5
    for wrong in ("value", "nothing"):
        assert f"prog.py has no function '{wrong}'" in failure(text, main=wrong)


def test_a_program_may_have_its_own_help() -> None:
    assert launch("def main(args, help: bool = False): return help", "--help").result is True
    assert launch("def main(args): return args.argv", "--help").result == ["--help"]
    assert launch("def main(args, *words): return words", "--", "--help").result == ["--help"]


# ---- what is told about mistakes ----

START = "import asyncio\nfrom inferlet_sdk import *\nfrom inferlet_sdk import traits\n"


@pytest.mark.parametrize(
    ("body", "call", "end"),
    [
        ("Context('nope')", "Context(model='nope')", "this server has toy, others by another --model"),
        ("ctx.fill('x').generate(max_tokens='many')", "Context.generate(max_tokens='many')", "not str 'many'"),
        ("Context(['toy'])", "Context(model=['toy'])", "model: give text, not list ['toy']"),
        ("await gather([ctx.flush()])", "", "a list of tasks is given as `gather(*tasks)`"),
        ("await ctx.next_dist(k='a')", "Context.next_dist(k='a')", ""),
        ("ctx.fill('a' * 500, special_tokens=3)", "special_tokens=3", "not int 3"),
        ("traits.alloc_kvpage(ctx, 'three')", "alloc_kvpage(queue=", "count: give a whole number, not str 'three'"),
        ("ctx.close()\n    ctx.fill('x')", "Context.fill(text='x')", "make a new one, or fork before closing"),
        ("args.send(ctx.generate_until())", "Args.send(text=", "was not awaited: write `await ...`"),
        ("asyncio.run(ctx.flush())", "", "write `await ...` instead of `asyncio.run(...)`"),
        ("await ctx.fill('x')", "", "this call needs no `await`: leave it out"),
        ("'a' + ctx.generate_until()", "", "a call of an `async def` was not awaited: write `await ...`"),
        ("ctx.next_dist().tokens", "", "a call of an `async def` was not awaited: write `(await ...)`"),
        ("open('some.txt')", "", "data files of the program are read by `program_files()`"),
        ("return ctx.generate_until()", "", "write `await` in front of what you return"),
        ("return ctx.generate()", "", "`await args.stream(...)` or `await ctx.generate_until(...)` gives its text"),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::RuntimeWarning")
def test_mistakes_are_explained(body: str, call: str, end: str) -> None:
    trace = failure(START + f"async def main(args):\n    ctx = Context(args.model)\n    {body}\n")
    gc.collect()  # what was not awaited
    if call:
        (line,) = [line for line in trace.splitlines() if line.startswith("  in the call ")]
        assert call in line
        assert len(line) < 400
    assert trace.endswith(end)


def test_objects_whose_repr_fails_do_not_hide_the_error() -> None:
    text = START + "class Bad:\n    def __repr__(self): raise ZeroDivisionError\n"
    trace = failure(text + "async def main(args):\n    Context(args.model).fill(['x', Bad()])\n")
    assert "Context.fill(text=" in trace or "ZeroDivisionError" in trace


@pytest.mark.parametrize("call", ["ctx.flush()", "helper()", "asyncio.sleep(1)"])
def test_a_forgotten_await_is_an_error(call: str) -> None:
    text = START + "async def helper(): pass\nasync def main(args):\n    ctx = Context(args.model)\n    "
    error = failure(text + call + "\n    return 3\n")
    name = call.partition("(")[0].rpartition(".")[2]
    assert f"{name}(...)` was called but never awaited, so it did nothing: write `await` in front" in error
    assert f"line 7 of prog.py: {call}" in error


def test_coroutines_that_are_awaited_later_are_no_error() -> None:
    text = (
        START
        + "async def main(args):\n    ctx = Context(args.model).fill('x')\n    later = ctx.flush()\n    await later\n"
    )
    text += "    task = asyncio.create_task(ctx.flush())\n    task.cancel()\n    return 3\n"
    assert launch(text).result == 3
