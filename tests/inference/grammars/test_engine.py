"""Grammars and matchers: what is said of those that are wrong, and that nothing which a guest writes takes for ever."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from pie_inference.grammars import engine
from pie_inference.grammars.sources import KINDS, MOST_TEXT, GrammarError, source_of
from pie_inference.testing import byte_tokenizer
from tests.helpers.grammars import bits, compiled, deep, vocabulary
from tests.helpers.tree import DEMO_MODEL

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def chain(step: str, last: str, between: str = "") -> str:
    """As many steps, one in the other, as fit."""
    names = (f"x{number:x}" for number in range(1 << 16))
    text, name = "", next(names)
    for other in names:
        line = step.replace("A", name).replace("B", other) + between
        if len(text) + len(line) + len(last) + 60 > MOST_TEXT:
            break
        text, name = text + line, other
    return text + last.replace("A", name)


NESTED_SCHEMAS = [
    '"A":{"items":{"$ref":"#/$defs/B"}},',
    '"A":{"anyOf":[{"$ref":"#/$defs/B"},{"type":"null"}]},',
    '"A":{"additionalProperties":{"$ref":"#/$defs/B"}},',
    '"A":{"allOf":[{"$ref":"#/$defs/B"},{"type":"object"}]},',
]
HOSTILE = [
    *(("json-schema", '{"$ref":"#/$defs/x0","$defs":{' + chain(step, '"A":{}') + "}}") for step in NESTED_SCHEMAS),
    ("lark", "start: x0\n" + chain("A:B\n", 'A:"x"')),
    ("lark", "start: X0\n" + chain("A:B\n", 'A:"x"').upper()),
    ("lark", "start: X0\n" + chain('A:"a" B? "b"\n', 'A:"x"').upper()),
    ("lark", "start: X0\n" + chain("A:~(B|/a/)\n", 'A:"x"').upper()),
    ("lark", "start: " + "(" * 30_000 + '"a"' + ")" * 30_000),
    ("lark", "start: x x\nx: x x |"),
    ("regex", "(" * 30_000 + "a" + ")" * 30_000),
    ("regex", "(a|b)?" * 10_000),
    ("regex", "((a{1,1000}){1,1000}){1,1000}"),
    ("regex", "(.*a.{20}b){9}"),
    ("regex", "a" * 60_000),
    ("json-schema", "[" * 30_000 + "]" * 30_000),
    ("json-schema", json.dumps({"type": "string", "pattern": "^" + "(a|b)?" * 1_000 + "$"})),
    ("json-schema", json.dumps({"properties": {f"q{n}": {"type": "integer"} for n in range(1500)}})),
    ("json-schema", json.dumps({"enum": [f"{n}" * 8 for n in range(2000)]})),
]


@pytest.mark.parametrize(("kind", "text"), HOSTILE, ids=lambda text: text[:30])
def test_what_is_hostile_is_compiled_or_refused_and_its_steps_are_bounded(kind: str, text: str) -> None:
    try:
        grammar = compiled(kind, text)
    except GrammarError:
        return
    matcher, choose = grammar.matcher(), random.Random(1)
    for _ in range(20):
        if matcher.is_over or not (allowed := bits(matcher)):
            break
        matcher.accept([choose.choice(allowed)])
    assert matcher.seconds < 10


WRONG: list[tuple[str, str, str]] = [
    ("xml", "a", "there is no kind of grammar 'xml'; there are json-schema, regex, lark"),
    ("regex", "a" * (MOST_TEXT + 1), "a grammar of 65537 characters is longer than 65536"),
    ("regex", " ", "the grammar is empty"),
    ("regex", "a\ud800", "half of a surrogate pair at character 1"),
    ("regex", "(ab", "the regular expression is wrong:\n    (ab\n    ^\nerror: unclosed group"),
    ("regex", "(?=a)b", "look-around, including look-ahead and look-behind, is not supported"),
    ("lark", "start: foo bar\nfoo: /x/\n", 'line 1, column 8: unknown name: "bar"'),
    ("lark", 'start: ("x"\n', "line 1, column 12: Expected token ')'"),
    ("lark", "start: start2\nstart2: start2\n", "allows no text: is there a rule that only leads to itself?"),
    ("json-schema", '{"type": ', "the schema is not JSON: Expecting value: line 1 column 10 (char 9)"),
    ("json-schema", "[1]", "a JSON Schema is an object, or true, not a list"),
    ("json-schema", '{"type": "strin"}', "Invalid type: strin"),
    ("json-schema", '{"not": {"type": "null"}}', "does not know `not` of JSON Schema: do without, and check the value"),
    ("json-schema", '{"items": {"uniqueItems": true, "contains": {}}}', "`contains`"),
    ("json-schema", '{"type": "integer", "minimum": 5, "maximum": 3}', "minimum (5) is greater than maximum (3)"),
    ("json-schema", "false", "the schema is false, which allows no value"),
    ("json-schema", '{"$ref": "https://a.b/c"}', "refers to https://a.b/c, which is not in it: put it under `$defs`"),
    ("json-schema", '{"$ref": "#/$defs/b"}', "Pointer '/$defs/b' does not exist"),
    ("json-schema", '{"enum": []}', "Unsatisfiable schema"),
    ("json-schema", '{"$ref": "#"}', "the grammar allows no text"),
]


@pytest.mark.parametrize(("kind", "text", "message"), WRONG, ids=lambda text: text[:20].encode("ascii", "replace"))
def test_what_is_wrong_is_said_with_its_place(kind: str, text: str, message: str) -> None:
    with pytest.raises(GrammarError) as caught:
        compiled(kind, text)
    assert message in str(caught.value)
    assert "<state>" not in str(caught.value)


def test_a_schema_that_is_true_allows_every_value() -> None:
    matcher = compiled("json-schema", "true").matcher()
    text = list(b'{"a": [1, null]}')
    assert matcher.accept(text) == len(text)
    assert matcher.is_accepting


def test_enough_is_forced_or_not() -> None:
    matcher = compiled("lark", 'start: "abc" /[xy]/').matcher()
    assert [matcher.forces(count) for count in (1, 3, 4)] == [True, True, False]
    matcher.accept(list(b"abc"))
    assert not matcher.forces(1)


@pytest.mark.parametrize(
    ("kind", "text", "written"),
    [
        ("lark", 'start: "a" END\nEND: "<|end|>"', "a<|end|>"),
        ("regex", r"<\|end\|>!", "<|end|>!"),
        ("json-schema", '{"const": "<|begin|>"}', '"<|begin|>"'),
    ],
)
def test_the_text_of_a_special_token_is_written_like_any_other(kind: str, text: str, written: str) -> None:
    matcher, made = compiled(kind, text).matcher(), list[int]()
    while not matcher.is_over:
        made += (allowed := bits(matcher))
        assert matcher.accept(allowed) == 1
    assert bytes(made).decode() == written


def test_tokens_without_text_are_in_no_grammar() -> None:
    tokenizer = (DEMO_MODEL / "tokenizer.json").read_bytes()
    words = engine.Vocabulary(tokenizer, 2048, (1,))
    source = source_of("regex", "ab")
    assert words.readable(source) == source


def test_a_special_token_is_named_without_quotes() -> None:
    matcher = compiled("lark", "start: <|begin|> /a/").matcher()
    assert bits(matcher) == [byte_tokenizer.BEGIN]
    assert matcher.accept([byte_tokenizer.BEGIN, ord("a")]) == 2


@pytest.mark.parametrize(
    ("decoder", "named"),
    [
        (None, "None"),
        ({"type": "WordPiece"}, "WordPiece"),
        ({"type": "Metaspace", "replacement": "▁"}, "Metaspace"),
    ],
    ids=str,
)
def test_a_tokenizer_that_has_no_bytes_is_named(decoder: Any, named: str) -> None:
    """In the last case letters would be unknown."""
    tokenizer = json.loads(byte_tokenizer.tokenizer_json()) | {"decoder": decoder}
    with pytest.raises(GrammarError, match=f"whose decoder is {named}: they know ByteLevel and ByteFallback; generate"):
        engine.Vocabulary(json.dumps(tokenizer).encode(), byte_tokenizer.VOCAB_SIZE, (byte_tokenizer.END,))


FIXED = {"strategy": {"Fixed": 8}, "direction": "Left", "pad_to_multiple_of": None} | dict.fromkeys(
    ("pad_id", "pad_type_id"), 0
)
PREFIXED = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


@pytest.mark.parametrize(
    "changes",
    [
        {"padding": FIXED | {"pad_token": "a"}},
        {"truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}},
        {"pre_tokenizer": PREFIXED},
    ],
    ids=["padding", "truncation", "prefix"],
)
def test_forced_tokens_are_those_of_their_text_alone(changes: dict[str, Any]) -> None:
    """And a model may lack tokens that were added, as Gemma 3 without images does."""
    tokenizer = json.dumps(json.loads(byte_tokenizer.tokenizer_json()) | changes).encode()
    words = engine.Vocabulary(tokenizer, byte_tokenizer.END + 1, (byte_tokenizer.END,))
    matcher = deep(lambda: engine.Grammar(words, source_of("regex", "hello"))).matcher()
    assert matcher.forced() == list(b"hello")
    assert bits(matcher) == [ord("h")]


def test_spaces_of_metaspace_are_spaces() -> None:
    """Beside ByteFallback, as in tokenizers of SentencePiece that are kept as they were."""
    spaces = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    words = [*(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abc", "▁a"]
    model = {"type": "BPE", "vocab": {word: number for number, word in enumerate(words)}, "merges": [["▁", "a"]]}
    decoder = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, spaces]}
    whole = {"version": "1.0", "model": model | {"byte_fallback": True}, "pre_tokenizer": spaces, "decoder": decoder}
    tokenizer = engine.Vocabulary(json.dumps(whole).encode(), len(words), ())
    matcher = deep(lambda: engine.Grammar(tokenizer, source_of("regex", "b a c"))).matcher()
    forced = matcher.forced()
    assert [words[token] for token in forced] == ["b", "▁a", "▁", "c"]
    assert matcher.accept(forced) == len(forced)
    assert matcher.is_accepting


def test_a_slow_grammar_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SLOWEST_STEP", 0.0)
    with pytest.raises(GrammarError, match="ms for a token, more than 0: use shorter"):
        compiled("regex", "[a-z]+")


def test_whitespace_is_that_of_dumps_or_free() -> None:
    strict = compiled("json-schema", json.dumps(PERSON)).matcher()
    free = compiled("json-schema", json.dumps(PERSON), whitespace=True).matcher()
    text = list(b'{"name": "x", "age": 7}')
    assert (strict.accept(text), free.accept(text)) == (len(text), len(text))
    strict.rewind()
    free.rewind()
    odd = list(b'{ "name" :"x",\n "age": 7 }')
    assert (strict.accept(odd), free.accept(odd)) == (1, len(odd))


def test_a_model_without_stop_tokens_ends_where_nothing_can_follow() -> None:
    size = byte_tokenizer.VOCAB_SIZE
    words = engine.Vocabulary(byte_tokenizer.tokenizer_json(), size, ())
    matcher = deep(lambda: engine.Grammar(words, source_of("regex", "a{1,2}"))).matcher()
    assert matcher.accept(list(b"a")) == 1
    assert (matcher.is_accepting, matcher.is_over, bits(matcher)) == (True, False, [ord("a")])
    assert matcher.mask().shape == (-(-size // 8),)
    assert matcher.accept(list(b"a")) == 1
    assert matcher.is_over


@st.composite
def schemas(draw: st.DrawFn, depth: int = 2) -> dict[str, Any]:
    leaves: list[dict[str, Any]] = [
        {"type": "integer", "minimum": -9, "maximum": 99},
        {"type": "boolean"},
        {"type": "string", "maxLength": draw(st.integers(0, 5))},
        {"enum": draw(st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=3, unique=True))},
    ]
    kind = draw(st.integers(0, 5 if depth else 3))
    if kind < 4:
        return leaves[kind]
    inner = draw(st.lists(schemas(depth=depth - 1), min_size=1, max_size=3))
    if kind == 4:
        return {"type": "array", "items": inner[0], "maxItems": draw(st.integers(0, 3))}
    properties = {f"k{number}": one for number, one in enumerate(inner)}
    required = list(properties)[: draw(st.integers(0, len(inner)))]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


@settings(max_examples=40, deadline=None)
@given(schema=schemas(), seed=st.integers(0, 1000))
def test_masks_are_those_of_a_matcher_made_by_the_engine_itself(schema: dict[str, Any], seed: int) -> None:
    """However far a matcher was moved, back and forth, and whatever its grammar was used for before."""
    grammar = compiled("json-schema", json.dumps(schema))
    matcher, choose, made = grammar.matcher(), random.Random(seed), list[int]()
    for _ in range(40):
        reference = LLMatcher(vocabulary().inner, grammar.source, log_level=0)
        assert reference.try_consume_tokens(made) == len(made)
        assert (matcher.is_over, matcher.at) == (reference.is_stopped(), len(made))
        if matcher.is_over:
            break
        expected = np.frombuffer(reference.compute_bitmask(), np.uint8)[: len(matcher.mask())]
        assert np.array_equal(matcher.mask(), expected)
        if made and choose.random() < 0.2:
            back = choose.randrange(1, len(made) + 1)
            matcher.rollback(back)
            del made[len(made) - back :]
            continue
        if choose.random() < 0.2:
            matcher = matcher.fork()
        token = choose.choice(bits(matcher))
        assert matcher.accept([token]) == 1
        made.append(token)
    if matcher.is_over:
        json.loads(bytes(token for token in made if token < 256))


def test_every_kind_has_a_test() -> None:
    assert {kind for kind, _ in HOSTILE} == set(KINDS)
