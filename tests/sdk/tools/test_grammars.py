"""Grammars of calls: what may be written under one is what the parser of its format reads, and a tool takes it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inferlet_sdk.schemas.foreign import foreign_record
from inferlet_sdk.tools.events import Call, Event, Malformed, Text
from inferlet_sdk.tools.formats.dialect import FORMATS
from inferlet_sdk.tools.formats.grammars import AUTO, REQUIRED, Called, call_grammar
from inferlet_sdk.tools.tool import Tool
from pie_inference.grammars.engine import Grammar, Matcher, Vocabulary
from pie_inference.grammars.sources import source_of
from pie_inference.testing import byte_tokenizer
from tests.helpers.grammars import deep

SPECIAL = {name: tuple(one.markers) for name, one in FORMATS.items()}
"""Markers by format: each format is tried with markers that are special tokens, and with such that are text."""
ALL = [(name, special) for name in FORMATS for special in (False, True)]


END_OF_TEXT = list(b"\n</parameter>")


def add(a: int, b: int = 1) -> int:
    return a + b


def look(word: Literal["red", "green"], note: str, sizes: list[int], deep: bool | None = None) -> str:
    return word


def now() -> str:
    return "noon"


TOOLS: list[Tool[..., Any]] = [Tool(add), Tool(look), Tool(now)]


def called() -> list[Called]:
    return [Called(one.name, one.declaration["function"]["parameters"]) for one in TOOLS]


class Model:
    """A vocabulary of bytes in which the markers of a format are special tokens, or none is."""

    def __init__(self, format: str, special: bool) -> None:
        markers = SPECIAL[format] if special else ()
        self.size = byte_tokenizer.VOCAB_SIZE + len(markers)
        self.shown = {byte_tokenizer.VOCAB_SIZE + place: marker for place, marker in enumerate(markers)}
        tokenizer = byte_tokenizer.tokenizer_json(self.size, markers)
        self._vocabulary = Vocabulary(tokenizer, self.size, (byte_tokenizer.END,))
        self._format = format

    def matcher(self, choice: str, tools: Sequence[Called] | None = None) -> Matcher:
        source = source_of("lark", call_grammar(self._format, tools or called(), self.shown, choice))
        matcher: Matcher = deep(lambda: Grammar(self._vocabulary, source)).matcher()
        return matcher

    def tokens(self, text: str) -> list[int]:
        """With its markers as special tokens."""
        for token, marker in self.shown.items():
            before, found, behind = text.partition(marker)
            if found:
                return [*self.tokens(before), token, *self.tokens(behind)]
        return list(text.encode())

    def text(self, tokens: Sequence[int]) -> str:
        parts = [self.shown[token].encode() if token in self.shown else bytes([token]) for token in tokens]
        return b"".join(parts).decode(errors="replace")

    def events(self, text: str) -> list[Event]:
        parser = FORMATS[self._format].parser()
        return [*parser.feed(text), *parser.finish()]


def write(model: Model, matcher: Matcher, seed: int, most: int = 400) -> tuple[str, bool]:
    """A text at random under a grammar, and whether it is whole: the end comes as soon as it may, texts are short."""
    choose, tokens = random.Random(seed), list[int]()
    plain, ends = set(range(32, 127)), set(b'"},]<)\n')
    while len(tokens) < most and not matcher.is_over:
        allowed = np.flatnonzero(np.unpackbits(matcher.mask(), bitorder="little")).tolist()
        if byte_tokenizer.END in allowed and tokens:
            return model.text(tokens), True
        if choose.random() < 0.1:  # a text of any length ends with this
            tokens += END_OF_TEXT[: matcher.accept(END_OF_TEXT)]
            continue
        forms = [token for token in allowed if token in ends or token >= 256] if choose.random() < 0.4 else []
        likely = forms or [token for token in allowed if token in plain] or allowed
        token = choose.choice([one for one in likely if one != byte_tokenizer.END])
        assert matcher.accept((token,)) == 1
        tokens.append(token)
    return model.text(tokens), matcher.is_over


@pytest.fixture(scope="module")
def models() -> Callable[[str, bool], Model]:
    made = {key: Model(*key) for key in ALL}
    return lambda name, special: made[name, special]


@pytest.mark.parametrize(("name", "special"), ALL)
@pytest.mark.parametrize("choice", [REQUIRED, "add", "look", "now"])
def test_what_is_written_under_a_grammar_is_read_and_taken(
    models: Callable[[str, bool], Model], name: str, special: bool, choice: str
) -> None:
    model, whole = models(name, special), 0
    matcher = model.matcher(choice)
    tools = {one.name: one for one in TOOLS}
    for seed in range(12):
        matcher.rewind()
        text, is_whole = write(model, matcher, seed)
        whole += is_whole
        found = model.events(text) if is_whole else []
        assert not [event for event in found if isinstance(event, Malformed)], text
        calls = [event for event in found if isinstance(event, Call)]
        assert bool(calls) == is_whole, text
        for call in calls:
            assert choice in (REQUIRED, call.name)
            tools[call.name].bind(call.arguments)
        assert choice == REQUIRED or len(calls) == is_whole
        assert "".join(event.text for event in found if isinstance(event, Text)).strip() == ""
    assert whole >= 6


ADD = {
    "hermes": '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>',
    "qwen_coder": "<tool_call>\n<function=add>\n<parameter=a>\n2\n</parameter>\n</function>\n</tool_call>",
    "llama": '{"name": "add", "parameters": {"a": 2}}',
    "mistral": '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 2}}]',
    "deepseek": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{"a": 2}\n```'
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "signature": "<tool>add(2)</tool>",
}


def may_be_written(model: Model, choice: str, text: str) -> bool:
    matcher, tokens = model.matcher(choice), model.tokens(text)
    return matcher.accept(tokens) == len(tokens) and (matcher.is_accepting or matcher.is_over)


@pytest.mark.parametrize(("name", "special"), ALL)
def test_a_model_may_answer_or_call_and_calls_only_what_there_is(
    models: Callable[[str, bool], Model], name: str, special: bool
) -> None:
    model, call = models(name, special), ADD[name]
    if name == "mistral" and special:
        call = '[TOOL_CALLS]add[ARGS]{"a": 2}'
    begin = "<|python_tag|>" if name == "llama" else ""
    for text in ("It is [5] <b> or so.", f"Let me see. {begin}{call}", call):
        assert may_be_written(model, AUTO, text), text
    other = call.replace("add", "sub")
    for wrong in (other, call.replace("2", '"two"'), f"Let me see. {begin}{other}"):
        assert not may_be_written(model, AUTO, wrong), wrong
    for choice in (REQUIRED, "add"):
        assert may_be_written(model, choice, call), choice
        assert not may_be_written(model, choice, "It is 5.")
        assert not may_be_written(model, choice, f"Well. {call}")
    assert not may_be_written(model, "now", call)


@pytest.mark.parametrize(("name", "special"), ALL)
def test_a_tool_of_a_server_may_be_described_by_keywords_that_no_grammar_keeps(
    models: Callable[[str, bool], Model], name: str, special: bool
) -> None:
    options = [{"properties": {key: {"type": "integer"}}, "required": [key]} for key in "ab"]
    told = {"type": "object", "oneOf": options, "not": {"required": ["c"]}, "propertyNames": {"minLength": 1}}
    tools = [Called("add", foreign_record("add", told).schema())]
    model = models(name, special)
    tokens = model.tokens('[TOOL_CALLS]add[ARGS]{"a": 2}' if name == "mistral" and special else ADD[name])
    assert model.matcher("add", tools).accept(tokens) == len(tokens)


PAINT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "colour": {"$ref": "#/$defs/Colour"},
        "at": {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]},
        "note": {"type": ["string", "null"]},
        "title": {
            "oneOf": [{"const": "Mr"}, {"allOf": [{"type": "integer"}], "default": 1}],
            "description": "?" * 70_000,
        },
        "more": True,
    },
    "required": ["colour", "at", "note", "title", "size"],
    "$defs": {
        "Colour": {"type": "string", "enum": ["red", "green"]},
        "Point": {"type": "object", "properties": {"x": {"type": "integer"}}, "additionalProperties": False},
    },
}
"""As clients make it of classes: parts are named elsewhere, and there may be none. What is for people has no bound."""
OTHERWISE = {
    "allOf": [{"$ref": "#/$defs/Paint"}],
    "$defs": {**PAINT["$defs"], "Paint": {key: one for key, one in PAINT.items() if key != "$defs"}},
}
"""The same, of parts."""
RED = {"colour": "red", "at": {"x": 1}, "note": "wet", "title": "Mr"}
WRITTEN = {"colour": "red", "at": '{"x": 1}', "note": "wet", "title": "Mr"}
LISTED = "".join(f"<parameter={name}>\n{text}\n</parameter>\n" for name, text in WRITTEN.items())


@pytest.mark.parametrize(("special", "told"), [(False, PAINT), (True, PAINT), (True, OTHERWISE)])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("signature", '<tool>paint("red", {"x": 1}, "wet", "Mr")</tool>'),
        ("qwen_coder", f"<tool_call>\n<function=paint>\n{LISTED}</function>\n</tool_call>"),
    ],
)
def test_parameters_may_be_described_by_references(
    models: Callable[[str, bool], Model], name: str, special: bool, told: dict[str, Any], call: str
) -> None:
    model, tools = models(name, special), [Called("paint", told)]
    tokens = model.tokens(call)
    assert model.matcher("paint", tools).accept(tokens) == len(tokens)
    (found,) = (event for event in model.events(call) if isinstance(event, Call))
    record = foreign_record("paint", {**PAINT, "required": ["colour"]})
    assert Tool(now, "paint", "", record).bind(found.arguments) == RED
    for right, wrong in (("red", "rod"), ('"x"', '"y"'), ("Mr", "Ms")):
        tokens = model.tokens(call.replace(right, wrong))
        assert model.matcher("paint", tools).accept(tokens) < len(tokens)


FORMS: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"pattern": "^[A-Z]{2}$"}, ["AB"], ["A", "ABC", "ab"]),
    ({"pattern": "[A-Z]{2}"}, ["AB", "x\nABx"], ["A"]),
    ({"pattern": "^a/[^/b]"}, ["a/c", "a/c/"], ["a//", "xa/c"]),
    ({"pattern": r"a\/b\$$"}, ["a/b$", "ca/b$"], ["a/b", "a/b$c"]),
    ({"pattern": "^(a|b)$"}, ["a", "b"], ["ab"]),
    ({"pattern": "^a$|b"}, ["any"], []),
    ({"pattern": "^a", "minLength": 9}, ["ab"], ["b"]),
    ({"maxLength": 3}, ["", "é\n€"], ["abcd"]),
    ({"minLength": 2}, ["abc"], ["a"]),
    ({"format": "date"}, ["2024-02-29"], ["2024-13-01", "today"]),
    ({"format": "date-time"}, ["2024-02-29T10:00:00.5+02:00"], ["2024-02-29"]),
    ({"format": "uri", "minLength": 0}, ["any"], []),
]
"""What a schema says of a text, texts that it takes, and such that it does not."""


@pytest.mark.parametrize(("form", "right", "wrong"), FORMS)
def test_a_text_that_is_written_as_it_is_keeps_to_its_form(
    models: Callable[[str, bool], Model], form: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    texts = {"anyOf": [{"type": "string", **form}, {"type": "null"}, {"enum": ["red"]}]}
    told = {"type": "object", "properties": {"a": texts}, "required": ["a"]}
    model = models("qwen_coder", True)
    matcher = model.matcher("add", [Called("add", told)])
    for text in (*right, "null", "red", *wrong):
        matcher.rewind()
        tokens = model.tokens(ADD["qwen_coder"].replace("2", text))
        assert (matcher.accept(tokens) == len(tokens)) == (text not in wrong), text


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_patterns_that_no_grammar_can_keep_are_left_out(
    models: Callable[[str, bool], Model], name: str, special: bool
) -> None:
    patterns = ["^(?!x).*$", r"\bred\b", r"(a)\1", "(", "a(?i)b", r"\Ared\Z"]
    texts = {"list": {"type": "array", "items": {"type": "string", "pattern": patterns[0]}}}
    texts |= {f"p{n}": {"type": "string", "pattern": one} for n, one in enumerate(patterns)}
    named = {"type": "object", "patternProperties": {one: {"type": "integer"} for one in patterns}}
    told = {"type": "object", "properties": {"a": {"type": "integer"}, "named": named, **texts}, "required": ["a"]}
    model = models(name, special)
    tokens = model.tokens('[TOOL_CALLS]add[ARGS]{"a": 2}' if name == "mistral" and special else ADD[name])
    assert model.matcher("add", [Called("add", told)]).accept(tokens) == len(tokens)


def test_further_parameters_are_written_by_name(models: Callable[[str, bool], Model]) -> None:
    model, told = models("qwen_coder", True), {"type": "object", "additionalProperties": {"type": "integer"}}
    for value in ("2", "two"):
        tokens = model.tokens(ADD["qwen_coder"].replace("2", value))
        matcher = model.matcher("add", [Called("add", told)])
        assert (matcher.accept(tokens) == len(tokens)) == value.isdigit()


WIDE = {
    "$defs": {f"l{n}": {"anyOf": [{"$ref": f"#/$defs/l{n - 1}"}] * 300} for n in range(1, 9)},
    "$ref": "#/$defs/l8",
}
"""Options that nobody can count."""


@pytest.mark.parametrize("schema", [{"type": 5}, {"enum": 5}, {"anyOf": 5}, {"anyOf": [5]}, {"$ref": 5}, 5, None, WIDE])
def test_a_schema_that_is_none_is_left_to_who_compiles_it(schema: Any) -> None:
    for name in FORMATS:
        assert call_grammar(name, [Called("w", {"properties": {"a": schema}, "required": 5})], {}, AUTO)


@settings(max_examples=40, deadline=None)
@example("\r\n ")
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="{[<"), max_size=40))
def test_any_text_without_a_marker_may_be_written_beside_tools(text: str) -> None:
    for name in FORMATS:
        assert may_be_written(_text_model(name), AUTO, text), name


_models: dict[str, Model] = {}


def _text_model(name: str) -> Model:
    return _models.setdefault(name, Model(name, False))
