"""Parsers of calls: what each format writes, wrong and unfinished texts, and equal events however a text is split."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferlet_sdk.tools.events import Call, CallStarted, Event, Malformed, Text
from inferlet_sdk.tools.formats.deepseek import DeepSeekParser
from inferlet_sdk.tools.formats.hermes import HermesParser
from inferlet_sdk.tools.formats.llama import LlamaParser
from inferlet_sdk.tools.formats.mistral import MistralParser
from inferlet_sdk.tools.formats.parser import LONGEST_CALL, Parser
from inferlet_sdk.tools.formats.qwen_coder import QwenCoderParser
from inferlet_sdk.tools.formats.signature import SignatureParser

PARSERS: dict[str, Callable[[], Parser]] = {
    "deepseek": DeepSeekParser,
    "hermes": HermesParser,
    "llama": LlamaParser,
    "mistral": MistralParser,
    "qwen_coder": QwenCoderParser,
    "signature": SignatureParser,
}


def events(parser: Parser, pieces: Sequence[str]) -> list[Event]:
    """With adjacent texts in one."""
    found: list[Event] = []
    for event in [event for piece in pieces for event in parser.feed(piece)] + parser.finish():
        if isinstance(event, Text) and found and isinstance(found[-1], Text):
            found[-1] = Text(found[-1].text + event.text)
        else:
            found.append(event)
    return found


def told(found: list[Event]) -> list[object]:
    """Events in short: text, ("start", name), (name, arguments), ("malformed", cut off)."""
    short: list[object] = []
    for event in found:
        match event:
            case Text(text):
                short.append(text)
            case CallStarted(_, name):
                short.append(("start", name))
            case Call(_, name, arguments):
                short.append((name, arguments))
            case Malformed():
                short.append(("malformed", event.cut_off))
    return short


def called(name: str, arguments: object) -> list[object]:
    return [("start", name), (name, arguments)]


ADD = '{"name": "add", "arguments": {"a": 1, "b": 2}}'
ADD_LLAMA = '{"name": "add", "parameters": {"a": 1, "b": 2}}'
AB = {"a": 1, "b": 2}
CODER = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>\n</function>"
SEEK = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{"a": 1, "b": 2}\n```<｜tool▁call▁end｜>'
SEEK_31 = '<｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1, "b": 2}<｜tool▁call▁end｜>'
SEEKS, SOUGHT = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
TEXTS = {"a": "1", "b": "2"}

CASES: list[tuple[str, str, list[object]]] = [
    ("hermes", "Hello <b> there", ["Hello <b> there"]),
    ("hermes", f"<tool_call>\n{ADD}\n</tool_call>", called("add", AB)),
    (
        "hermes",
        f"Well.\n<tool_call>\n{ADD}\n</tool_call>\n<tool_call>{ADD}</tool_call> ok",
        ["Well.\n", *called("add", AB), "\n", *called("add", AB), " ok"],
    ),
    ("hermes", f"<tool_call>{ADD}", called("add", AB)),
    ("hermes", f"<tool_call>{ADD}<tool_call>{ADD}", [*called("add", AB), *called("add", AB)]),
    ("hermes", '<tool_call>{"name": "say", "arguments": {"x": "</tool_call> \\" }"}}</tool_call>',
     called("say", {"x": '</tool_call> " }'})),
    ("hermes", '<tool_call>{"arguments": {}, "name": "now"}</tool_call>', called("now", {})),
    ("hermes", '<tool_call>{"name": "now"}</tool_call>', called("now", {})),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', called("f", {"x": 1})),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>!', [("start", "f"), ("malformed", False), "!"]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {x}}</tool_call>', [("start", "f"), ("malformed", False)]),
    ("hermes", '<tool_call>{"arguments": {}}</tool_call>', [("malformed", False)]),
    ("hermes", f"<tool_call>add(1)</tool_call> <tool_call>{ADD}", [("malformed", False), " ", *called("add", AB)]),
    ("hermes", '<tool_call>\n{"name": "f", "argu', [("start", "f"), ("malformed", True)]),
    ("hermes", "<tool_call>\n", [("malformed", True)]),
    ("hermes", "a <tool_ca", ["a <tool_ca"]),
    ("hermes", f"<tool_call>{ADD}\n</tool_ca", [*called("add", AB), "\n</tool_ca"]),
    ("llama", "Hello {you}", ["Hello {you}"]),
    ("llama", ADD_LLAMA, called("add", AB)),
    ("llama", f" \n{ADD}", called("add", AB)),
    ("llama", f"<|python_tag|>{ADD_LLAMA}", called("add", AB)),
    ("llama", f"{ADD_LLAMA}; {ADD_LLAMA}", [*called("add", AB), *called("add", AB)]),
    ("llama", f"<|python_tag|>{ADD_LLAMA};<|python_tag|>{ADD_LLAMA} ", [*called("add", AB), *called("add", AB)]),
    ("llama", f"Let me see.<|python_tag|>{ADD_LLAMA}", ["Let me see.", *called("add", AB)]),
    ("llama", '{"type": "function", "name": "f", "parameters": {}}', called("f", {})),
    ("llama", '{"parameters": {"a": 1}, "name": "f"}', called("f", {"a": 1})),
    ("llama", '{"name": "Bob", "age": 3}', ['{"name": "Bob", "age": 3}']),
    ("llama", ' {"city": "Paris"} is it', [' {"city": "Paris"} is it']),
    ("llama", "{not JSON} at all", ["{not JSON} at all"]),
    ("llama", '{"name": "f", "parameters": {x}}', [("start", "f"), ("malformed", False)]),
    ("llama", '{"name": "f", "parameters": {"a', [("start", "f"), ("malformed", True)]),
    ("llama", '{"name": "Bo', ['{"name": "Bo']),
    ("llama", '<|python_tag|>search.call(query="x")', [("malformed", False)]),
    ("llama", "<|python_tag|>", [("malformed", True)]),
    ("llama", f"{ADD_LLAMA} is the call", [*called("add", AB), " is the call"]),
    ("mistral", "Hello [you]", ["Hello [you]"]),
    ("mistral", f"[TOOL_CALLS] [{ADD}]", called("add", AB)),
    ("mistral", f"[TOOL_CALLS][{ADD}, {ADD}] ok", [*called("add", AB), *called("add", AB), " ok"]),
    ("mistral", '[TOOL_CALLS]add[ARGS]{"a": 1, "b": 2}', called("add", AB)),
    ("mistral", '[TOOL_CALLS]add{"a": 1, "b": 2}', called("add", AB)),
    ("mistral", '[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS] {"a": 1, "b": 2}', called("add", AB)),
    (
        "mistral",
        'So: [TOOL_CALLS]add[ARGS]{"a": 1, "b": 2}[TOOL_CALLS]now[ARGS]{}',
        ["So: ", *called("add", AB), *called("now", {})],
    ),
    ("mistral", f"[TOOL_CALLS] [{ADD}", called("add", AB)),
    ("mistral", '[TOOL_CALLS] [{"name": "f"', [("start", "f"), ("malformed", True)]),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"a": ', [("start", "f"), ("malformed", True)]),
    ("mistral", "[TOOL_CALLS]f[AR", [("malformed", True)]),
    ("mistral", "[TOOL_CALLS]f[ARGS]nothing", [("malformed", False)]),
    ("mistral", "[TOOL_CALLS]f[ARGS]{x}", [("start", "f"), ("malformed", False)]),
    ("mistral", f'[TOOL_CALLS] [1][TOOL_CALLS] [{ADD}]', [("malformed", False), *called("add", AB)]),
    ("mistral", '[TOOL_CALLS]{"a": 1}', [("malformed", False)]),
    ("mistral", "[TOOL_CALLS]" + "x" * 300 + "[ARGS]{}", [("malformed", False)]),
    ("qwen_coder", "if a <b and <tool", ["if a <b and <tool"]),
    ("qwen_coder", f"So.\n{CODER}\n</tool_call>\n{CODER}</tool_call> ok",
     ["So.\n", *called("add", TEXTS), "\n", *called("add", TEXTS), " ok"]),
    ("qwen_coder", CODER, called("add", TEXTS)),
    ("qwen_coder", "<tool_call><function=now></function></tool_call>", called("now", {})),
    ("qwen_coder", "<tool_call><function=say><parameter=x>a\n\n<b> </function>\n</parameter></function>",
     called("say", {"x": "a\n\n<b> </function>"})),
    ("qwen_coder", "<tool_call><function=f><parameter=x>\n{\"y\": [1]}\n</parameter>\n</function>",
     called("f", {"x": '{"y": [1]}'})),
    ("qwen_coder", "<tool_call><function=f> x </function></tool_call>!", [("start", "f"), ("malformed", False), "!"]),
    ("qwen_coder", "<tool_call><function=f g></function></tool_call>", [("malformed", False)]),
    ("qwen_coder", f"<tool_call>{ADD}</tool_call>", [("malformed", False)]),
    ("qwen_coder", "<tool_call><function=f><parameter=x>1</para", [("start", "f"), ("malformed", True)]),
    ("qwen_coder", "<tool_call>\n<func", [("malformed", True)]),
    ("deepseek", "Hello <｜you", ["Hello <｜you"]),
    ("deepseek", f"So.{SEEKS}{SEEK}\n{SEEK}{SOUGHT}", ["So.", *called("add", AB), *called("add", AB)]),
    ("deepseek", f"{SEEKS}{SEEK_31}{SEEK_31}{SOUGHT} ok", [*called("add", AB), *called("add", AB), " ok"]),
    ("deepseek", f"{SEEKS}{SEEK[:-20]}", called("add", AB)),
    ("deepseek", f"{SEEKS}{SEEK_31}", called("add", AB)),
    ("deepseek", f"{SEEKS}{SEEK.replace('json', '')}{SOUGHT}", called("add", AB)),
    ("deepseek", f"{SEEKS}{SEEK_31.replace('1,', '1')}{SOUGHT}", [("start", "add"), ("malformed", False)]),
    ("deepseek", f"{SEEKS}{SEEK.replace('json', 'js')}{SOUGHT}!", [("malformed", False), "!"]),
    ("deepseek", f"{SEEKS}add(1){SOUGHT}", [("malformed", False)]),
    ("deepseek", f"{SEEKS}{SEEK[:40]}", [("malformed", True)]),
    ("deepseek", f"{SEEKS}{SEEK[:60]}", [("start", "add"), ("malformed", True)]),
    ("deepseek", SEEKS, [("malformed", True)]),
    ("signature", "Hello <b>(1)", ["Hello <b>(1)"]),
    ("signature", "<tool>add(1, 2)</tool>", called("add", [1, 2])),
    ("signature", "<tool>add-all(1, 2)</tool>", called("add-all", [1, 2])),
    ("signature", '<tool>say("a) \\" (", [1, {"x": ")"}])</tool>.', [*called("say", ['a) " (', [1, {"x": ")"}]]), "."]),
    ("signature", "<tool>now()</tool> <tool>now()", [*called("now", []), " ", *called("now", [])]),
    ("signature", "<tool>add(1, b)</tool>", [("start", "add"), ("malformed", False)]),
    ("signature", "<tool>what is it</tool> or", [("malformed", False), " or"]),
    ("signature", "<tool>1x(2)</tool>", [("malformed", False)]),
    ("signature", "<tool>add(1, ", [("start", "add"), ("malformed", True)]),
    ("signature", "<tool>ad", [("malformed", True)]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "expected"), CASES, ids=[f"{case[0]}{n}" for n, case in enumerate(CASES)])
def test_what_a_text_consists_of(name: str, text: str, expected: list[object]) -> None:
    found = events(PARSERS[name](), [text])
    assert told(found) == expected
    for one in found:
        if isinstance(one, Malformed):
            assert one.reason
    numbers = [one.number for one in found if isinstance(one, Call | Malformed)]
    assert numbers == list(range(len(numbers)))
    assert events(PARSERS[name](), list(text)) == found, "one by one"


PIECES = [
    "<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<tool>", "</tool>", ADD,
    ADD_LLAMA, f"[{ADD}]", "add(1, [2])", "add", '{"a": 1}', "; ", "\n", " ", "hi", '"', "\\", "{", "}", "[", "]", "(",
    "<function=f>", "<parameter=x>", "</parameter>", "</function>", CODER, SEEKS, SOUGHT, SEEK, SEEK_31, "```", "json",
    "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "function", ")", '{"name": "x"',
    ', "arguments": {', '{"x": 1', "é", "[TOOL_CALLS]add[ARGS]{}", '"}',
]  # fmt: skip


@given(
    st.sampled_from(sorted(PARSERS)),
    st.lists(st.sampled_from(PIECES), max_size=8).map("".join),
    st.lists(st.integers(1, 9), max_size=30),
)
def test_any_split_of_a_text_gives_the_same_events(name: str, text: str, sizes: list[int]) -> None:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(text[at : at + size])
        at += size
    assert events(PARSERS[name](), [*pieces, text[at:]]) == events(PARSERS[name](), [text])


@given(st.sampled_from(sorted(PARSERS)), st.lists(st.sampled_from(["hi", " ", "\n", "<", "[", "é", "{"]), max_size=9))
def test_text_without_a_marker_comes_whole(name: str, pieces: list[str]) -> None:
    assert "".join(one.text for one in events(PARSERS[name](), pieces) if isinstance(one, Text)) == "".join(pieces)


@pytest.mark.parametrize(
    ("name", "begin"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"x": "'),
        ("hermes", "<tool_call>"),
        ("llama", '{"name": "f", "parameters": {"x": "'),
        ("llama", "<|python_tag|>"),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"x": "'),
        ("mistral", '[TOOL_CALLS][{"name": "'),
        ("qwen_coder", "<tool_call><function=f><parameter=x>"),
        ("qwen_coder", "<tool_call>"),
        ("deepseek", SEEKS + '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": "'),
        ("deepseek", SEEKS),
        ("signature", '<tool>f("'),
        ("signature", "<tool>!"),
    ],
)
def test_a_call_without_an_end_is_given_up(name: str, begin: str) -> None:
    text = begin + "y" * (LONGEST_CALL + 1000)
    found = events(PARSERS[name](), [text])
    assert [one.reason for one in found if isinstance(one, Malformed)] == [
        f"the call is longer than {LONGEST_CALL} characters"
    ]
    assert events(PARSERS[name](), [text[n : n + 5000] for n in range(0, len(text), 5000)]) == found


@pytest.mark.parametrize(("name", "before", "after"), [
    ("hermes", '<tool_call>{"name": "f",', ' "arguments": {}}'),
    ("mistral", "[TOOL_CALLS]f[ARGS]{", "}"),
    ("signature", "<tool>f(", ")"),
    ("qwen_coder", "<tool_call>\n<function=f>", "</function>"),
    ("deepseek", SEEKS + "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{", "}"),
    ("llama", '{"name": "f", "parameters":', " {}}"),
])  # fmt: skip
def test_a_call_is_told_while_it_comes(name: str, before: str, after: str) -> None:
    parser = PARSERS[name]()
    assert parser.feed(before) == [CallStarted(0, "f")]
    assert [type(one) for one in parser.feed(after)] == [Call]
