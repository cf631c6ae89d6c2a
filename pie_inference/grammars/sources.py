"""What programs write, a JSON Schema, a regular expression or a Lark grammar, as text that the engine compiles."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from llguidance import LLMatcher

MOST_TEXT = 64 << 10
"""Characters of a grammar. What it takes to compile one grows with its text, and so does the stack (engine.py)."""

KINDS = ("json-schema", "regex", "lark")

_SOME_WHITESPACE = r"[ \n\t]{0,20}"
"""Where a schema leaves whitespace to the model: not so much that one could write nothing else."""
_PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")
_REGEX_ERROR = re.compile(r".*regex parse error:\n(.*?)(?:\n   \d+ \| |\Z)", re.DOTALL)
_STATE = re.compile(r"\s*<(?:state|non-verbose)\b.*", re.DOTALL)
_KEYS = re.compile(r"Unimplemented keys: \[(.*?)\]")
_ELSEWHERE = re.compile(r"Resource '(.*?)' is not present in a registry")
_ITEMS = re.compile(r"Current row has (\d+) items; max is (\d+)")


class GrammarError(Exception):
    """A grammar cannot be compiled, or a matcher cannot go on. The message says what to do."""


def source_of(kind: str, text: str, *, whitespace: bool = False) -> str:
    """The grammar as the engine reads it. `whitespace`: whether a JSON text may have any; else it has that of Python's
    `json.dumps`. Raises GrammarError."""
    if kind not in KINDS:
        raise GrammarError(f"there is no kind of grammar {kind!r}; there are {', '.join(KINDS)}")
    if len(text) > MOST_TEXT:
        advice = "make it smaller, or give fewer tools" if kind == "lark" else "make it smaller"
        raise GrammarError(f"a grammar of {len(text)} characters is longer than {MOST_TEXT}: {advice}")
    if not text.strip():
        raise GrammarError("the grammar is empty")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise GrammarError(f"the grammar has half of a surrogate pair at character {error.start}") from None
    if kind == "json-schema":
        return _schema_source(text, whitespace)
    return LLMatcher.grammar_from_regex(text) if kind == "regex" else LLMatcher.grammar_from_lark(text)


def _schema_source(text: str, whitespace: bool) -> str:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the schema is not JSON: {error}") from None
    if schema is False:
        raise GrammarError("the schema is false, which allows no value")
    if schema is True:
        text = "{}"  # the same; the engine takes objects only
    if not isinstance(schema, Mapping | bool):
        raise GrammarError(f"a JSON Schema is an object, or true, not a {type(schema).__name__}")
    options: dict[str, Any] = {
        "item_separator": ", ",
        "key_separator": ": ",
        "whitespace_flexible": False,
        "coerce_one_of": True,
    }
    if whitespace:
        options |= {"item_separator": ",", "key_separator": ":", "whitespace_flexible": True}
        options["whitespace_pattern"] = _SOME_WHITESPACE
    try:
        return LLMatcher.grammar_from_json_schema(text, overrides=options)  # type: ignore[arg-type]
    except ValueError as error:
        raise GrammarError(f"the schema is not JSON: {error}") from None


def unforced(source: str) -> str:
    """Changes a grammar so that the model chooses all tokens, also those of text that must come."""
    option = '%llguidance {"no_forcing": true}'
    try:
        whole = json.loads(source)
        whole["grammars"][0]["name"] = "whole"
        whole["grammars"].insert(0, {"lark_grammar": f"{option}\nstart: @whole"})
        return json.dumps(whole)
    except (ValueError, RecursionError, TypeError, LookupError):  # it is in Lark
        return f"{source}\n{option}\n"


def in_words(message: str) -> str:
    """A message of the engine: where something is wrong, and what."""
    message = _STATE.sub("", message).strip()
    if found := _REGEX_ERROR.match(message):
        return "the regular expression is wrong:\n" + found[1].rstrip()
    if found := _ITEMS.search(message):
        return f"the grammar is ambiguous in too many ways at one place ({found[1]} of at most {found[2]}): simplify it"
    if found := _KEYS.search(message):
        names = found[1].replace('"', "`")
        return f"the engine does not know {names} of JSON Schema: do without, and check the value afterwards"
    if found := _ELSEWHERE.search(message):
        return f"the schema refers to {found[1]}, which is not in it: put it under `$defs`, and refer to it there"
    if "NoExtensionBias" in message:
        return "the grammar allows no text: is there a rule that only leads to itself?"
    if "too many expressions" in message or "fuel" in message:
        return "the grammar is too complex: use fewer or shorter repetitions and alternatives"
    return _PLACE.sub(r"line \1, column \2: ", message) or "the engine did not say why"
