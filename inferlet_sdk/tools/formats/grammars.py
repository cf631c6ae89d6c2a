"""Grammars of what a model may write when it has tools: text and calls, or calls alone, whose arguments keep to the
schemas of the tools. In the syntax of Lark, as llguidance reads it.

A marker that is a special token is named by its number: text cannot hold it. One that is text ends the text in front of
it, so that goes up to the first marker, and what has no marker goes on to the end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard

from inferlet_sdk.schemas.foreign import DATA, DEFINITIONS, NAMES, parts_of, properties_of, referred_by, shared_by
from inferlet_sdk.tools.formats import deepseek, hermes, llama, mistral, qwen_coder, signature

AUTO, REQUIRED = "auto", "required"

_DATE = "[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_MOMENTS = {"date": _DATE, "time": _TIME, "date-time": f"{_DATE}T{_TIME}"}
"""Formats of texts that are kept as they are, without JSON (RFC 3339)."""

Schema = Mapping[str, Any]
_AS_DUMPED = {
    "x-guidance": {
        "whitespace_flexible": False,
        "item_separator": ", ",
        "key_separator": ": ",
        "coerce_one_of": True,
        "lenient": True,
    }
}
"""JSON as `json.dumps` writes it. A schema may be a stranger's: keywords that no grammar can keep are left out."""
_UNKEPT = re.compile(r"\\[bBAzZkG1-9]|\(\?(?!:)|\n")
"""What a grammar has not of a pattern: look-around, references back, flags, and ends of words and lines."""
_FOR_PEOPLE = ("title", "description", "default", "examples", "$comment")
"""Keywords that say nothing of a value. They are most of what a schema of a server has, and a grammar has a bound."""


@dataclass(frozen=True)
class Called:
    """A tool: its name, and the schema of its parameters."""

    name: str
    parameters: Schema

    @cached_property
    def properties(self) -> Mapping[str, Schema]:
        """The schema of each parameter by itself."""
        return properties_of(self.parameters)

    @cached_property
    def required(self) -> Sequence[str]:
        """Those of the parameters that have to be there."""
        needed = [part.get("required") for part in parts_of(self.parameters, ("allOf",), set())]
        return [name for name in self.properties if any(name in one for one in needed if isinstance(one, list))]


def call_grammar(format: str, tools: Sequence[Called], shown: Mapping[int, str], choice: str) -> str:
    """What may be written in a format: text and calls ("auto"), one or more calls ("required"), or one call of the tool
    of this name. `shown`: markers that are special tokens."""
    many = choice in (AUTO, REQUIRED)
    writer = _Writer(shown)
    group = _GROUPS[format](writer, tools if many else [tool for tool in tools if tool.name == choice], many)
    start = writer.with_text(group) if choice == AUTO else writer.alone(group, many)
    return "\n".join((f"start: {start}", *writer.rules))


@dataclass(frozen=True)
class _Group:
    """One call, or several that stand together: `marker` and what follows it. `bare`: the marker may be missing at the
    start of an answer, which then begins with `{`. `between` stands between groups; None: there is only one."""

    marker: str
    rest: str
    between: str | None = None
    bare: bool = False


class _Writer:
    """Rules so far, and how their parts are written."""

    def __init__(self, shown: Mapping[int, str]) -> None:
        self.rules: list[str] = []
        self._special = {marker: token for token, marker in shown.items()}

    def rule(self, text: str, attributes: str = "") -> str:
        """A new rule; its name."""
        name = f"r{len(self.rules)}"
        self.rules.append(f"{name}{attributes}: {text}")
        return name

    def terminal(self, text: str) -> str:
        """A new terminal; its name."""
        name = f"T{len(self.rules)}"
        self.rules.append(f"{name}: {text}")
        return name

    def mark(self, marker: str) -> str:
        """A marker as a part of a rule."""
        token = self._special.get(marker)
        return literal(marker) if token is None else f"<[{token}]>"

    def has(self, marker: str) -> bool:
        """Whether it is a special token."""
        return marker in self._special

    def json(self, schema: Schema) -> str:
        """A value that keeps to a schema, as `json.dumps` writes it."""
        return self.rule(f"%json {json.dumps({**_bare(schema), **_AS_DUMPED})}")

    def any_of(self, parts: Sequence[str]) -> str:
        return self.rule(" | ".join(parts))

    def alone(self, group: _Group, many: bool) -> str:
        """Calls without text."""
        mark = self.mark(group.marker)
        first = f"{mark}?" if group.bare else mark
        more = "" if group.between is None or not many else f" ({group.between} {first} {group.rest})*"
        return f"{first} {group.rest}{more}"

    def with_text(self, group: _Group) -> str:
        """Text, and calls within it."""
        first = r"\s*[^\s{]" if group.bare else ""  # what begins otherwise is a call
        lead, tail = self._texts(group.marker, first)
        if not group.bare:
            return f"({lead} {group.rest})* {tail}?"
        calls = self.rule(self.alone(group, True))
        more = f"{group.rest} ({group.between} {self.mark(group.marker)}? {group.rest})*"
        return rf"{calls} | {tail}? | /\s+/ | {lead} {more}"

    def _texts(self, marker: str, first: str) -> tuple[str, str]:
        """Text up to a marker, with it, and text without one, which is not empty."""
        text = f"/{first}(?s:.{'*' if first else '+'})/"
        if self.has(marker):
            tail = self.rule(text)
            return self.rule(f"{tail if first else tail + '?'} {self.mark(marker)}"), tail
        end = pattern(marker)
        self.rules += [
            f"LEAD: /{first}(?s:.*){end}/ & ~/(?s:.*){end}(?s:.+)/",
            f"TAIL: {text} & ~/(?s:.*){end}(?s:.*)/",
        ]
        return self.rule("LEAD", "[lazy]"), self.rule("TAIL")


def _bare(schema: Any, names: str = "") -> Any:
    """A schema without what is for people, and without patterns that no grammar can keep. `names`: the keyword that
    has it, if its keys are names that the schema gives, and no keywords."""
    if isinstance(schema, list):
        return [_bare(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    if names:
        is_there = _is_kept if names == "patternProperties" else bool
        return {key: _bare(one) for key, one in schema.items() if is_there(key)}
    return {
        key: one if key in DATA else _bare(one, key if key in (*NAMES, *DEFINITIONS) else "")
        for key, one in schema.items()
        if key not in _FOR_PEOPLE and (key != "pattern" or _is_kept(one))
    }


def _is_kept(pattern: object) -> TypeGuard[str]:
    """Whether a grammar can keep to a pattern."""
    try:
        return isinstance(pattern, str) and _UNKEPT.search(pattern) is None and re.compile(pattern) is not None
    except (re.error, RecursionError, OverflowError):
        return False


def literal(text: str) -> str:
    """A text as a part of a rule."""
    return json.dumps(text, ensure_ascii=False)


def pattern(text: str) -> str:
    """A text within a regular expression."""
    return re.escape(text).replace("/", r"\/").replace("\n", "n")


def _objects(writer: _Writer, tools: Sequence[Called], key: str) -> str:
    """{"name": ..., key: {...}} of any of the tools."""
    heads = [literal(f'{{"name": {json.dumps(tool.name)}, "{key}": ') for tool in tools]
    return writer.any_of(
        [f'{head} {writer.json(tool.parameters)} "}}"' for head, tool in zip(heads, tools, strict=True)]
    )


def _hermes(writer: _Writer, tools: Sequence[Called], many: bool) -> _Group:
    return _Group(
        hermes.BEGIN, rf'"\n" {_objects(writer, tools, "arguments")} "\n" {writer.mark(hermes.END)}', r'"\n"?'
    )


def _llama(writer: _Writer, tools: Sequence[Called], many: bool) -> _Group:
    return _Group(llama.TAG, _objects(writer, tools, "parameters"), "/; ?/", bare=True)


def _mistral(writer: _Writer, tools: Sequence[Called], many: bool) -> _Group:
    """Models whose vocabulary has a marker in front of the arguments write calls one by one, others a list."""
    if writer.has(mistral.ARGUMENTS):
        arguments = writer.mark(mistral.ARGUMENTS)
        calls = [f"{literal(tool.name)} {arguments} {writer.json(tool.parameters)}" for tool in tools]
        return _Group(mistral.BEGIN, writer.any_of(calls), '""')
    one = _objects(writer, tools, "arguments")
    more = f'(", " {one})*' if many else ""
    return _Group(mistral.BEGIN, f'/ ?\\[/ {one} {more} "]"')


def _deepseek(writer: _Writer, tools: Sequence[Called], many: bool) -> _Group:
    """The grammar of calls as V3 and V3.1 write them."""
    call, separator, end = map(writer.mark, (deepseek.CALL, deepseek.SEPARATOR, deepseek.CALL_END))
    calls = []
    for tool in tools:
        arguments = writer.json(tool.parameters)
        calls.append(f"{literal(tool.name)} {separator} {arguments}")
        calls.append(rf'"function" {separator} {literal(tool.name)} "\n```json\n" {arguments} "\n```"')
    one = writer.rule(f"{call} ({' | '.join(calls)}) {end}")
    return _Group(
        deepseek.BEGIN,
        f"{one} {writer.rule(rf'({literal(chr(10))}? {one})*') if many else ''} {writer.mark(deepseek.END)}",
    )


def _signature(writer: _Writer, tools: Sequence[Called], many: bool) -> _Group:
    calls = [f'{literal(tool.name + "(")} {_in_order(writer, tool)} ")"' for tool in tools]
    return _Group(signature.BEGIN, f"{writer.any_of(calls)} {writer.mark(signature.END)}", '""')


def _in_order(writer: _Writer, tool: Called) -> str:
    """Arguments by their place: the last ones may be missing if they may all."""
    names = list(tool.properties)
    needed = max((names.index(name) + 1 for name in tool.required), default=0)
    written = ""
    for place in reversed(range(len(names))):
        one = writer.json(tool.properties[names[place]])
        part = f'", " {one} {written}' if place else f"{one} {written}"
        written = part if place < needed else f"({part})?"
    return written


def _qwen_coder(writer: _Writer, tools: Sequence[Called], many: bool) -> _Group:
    calls = []
    for tool in tools:
        parameters = [_parameter(writer, tool, name) for name in tool.properties]
        further = tool.parameters.get("additionalProperties", False)
        if further is not False:
            value = _written(writer, further if isinstance(further, Mapping) else {})
            parameters.append(rf'("<parameter=" /[^\s<>]+/ ">\n" {value} "\n")*')
        calls.append(rf'{literal(f"<function={tool.name}>{chr(10)}")} {" ".join(parameters)} "</function>\n"')
    rest = rf'"\n" {writer.any_of(calls)} {writer.mark(qwen_coder.END)}'
    return _Group(qwen_coder.BEGIN, rest, r'"\n"?')


def _parameter(writer: _Writer, tool: Called, name: str) -> str:
    part = rf'{literal(f"<parameter={name}>{chr(10)}")} {_written(writer, tool.properties[name])} "\n"'
    return part if name in tool.required else f"({part})?"


def _written(writer: _Writer, schema: Schema) -> str:
    """A value up to its end tag: a text as it is, words of an enumeration, else JSON."""
    options, tag = _options(schema, set()) or [schema], pattern(qwen_coder.VALUE_END)
    if all(forms := list(map(_form, options))):
        whole = rf"/(?:{'|'.join(forms)})\n{tag}/ & ~/(?s:.*){tag}(?s:.+)/"
        return writer.rule(writer.terminal(whole), "[lazy]")
    if any(_may_be_text(option) and not _words(option) for option in options):
        return writer.rule(f"/(?s:.*){tag}/", "[lazy]")
    parts = [part for option in options for part in (list(map(literal, _words(option))) or [writer.json(option)])]
    return f"({' | '.join(parts)}) {literal(f'{chr(10)}{qwen_coder.VALUE_END}')}"


def _form(schema: Schema) -> str:
    """A regular expression of texts and words by what a schema says of them: words, a format, a pattern, or else a
    length, as grammars of both are too large; "": it says nothing that can be kept, or is of other values."""
    if words := _words(schema):
        return "|".join(map(pattern, words))
    if schema.get("type") != "string":
        return "null" * (schema.get("type") == "null")
    if isinstance(named := schema.get("format"), str) and named in _MOMENTS:
        return _MOMENTS[named]
    if _is_kept(written := schema.get("pattern")) and (found := _whole(written)):
        return found
    least, most = (schema.get(name) if type(schema.get(name)) is int else "" for name in ("minLength", "maxLength"))
    return f"(?s:.{{{least or 0},{most}}})" if least or most != "" else ""


def _whole(written: str) -> str:
    """A regular expression, within slashes, of texts in which a pattern is; "": where it begins or ends a text cannot
    be told."""
    inner = written.removeprefix("^")
    begins, ends = inner != written, inner.endswith("$") and not inner.endswith("\\$")
    inner = inner.removesuffix("$") if ends else inner
    around = re.sub(r"\\.|\[(?:\\.|[^\]])+\]", "", inner)  # without letters and sets of them
    if re.search(r"[$^]", around):
        return ""
    found = re.sub(r"\\.|/", lambda one: r"\/" if one[0] == "/" else one[0], inner)
    return f"{'' if begins else '(?s:.*)'}(?:{found}){'' if ends else '(?s:.*)'}"


def _options(schema: Schema, seen: set[str]) -> list[Schema]:
    """The schemas of one of which a value is: what a reference, `anyOf`, `oneOf` and an `allOf` of one stand for. None
    for a reference of `seen`, whose options have come before."""
    shared, reference = shared_by(schema), str(schema.get("$ref", ""))
    named = referred_by(schema) or schema.get("anyOf", schema.get("oneOf"))
    if named is None and isinstance(parts := schema.get("allOf"), list) and len(parts) == 1:
        named = parts
    if not isinstance(named, list):
        return [schema]
    if reference in seen:
        return []
    seen |= {reference} - {""}
    return [option for one in named if isinstance(one, Mapping) for option in _options({**shared, **one}, seen)]


def _may_be_text(schema: Schema) -> bool:
    kinds = schema.get("type", "string")
    return "string" in (kinds if isinstance(kinds, list) else [kinds])


def _words(schema: Schema) -> list[str]:
    """The values of an enumeration, or the only one, as they are written."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    words = values if isinstance(values, list) else []
    return [word if isinstance(word, str) else json.dumps(word) for word in words]


_GROUPS: Mapping[str, Callable[[_Writer, Sequence[Called], bool], _Group]] = {
    "hermes": _hermes,
    "qwen_coder": _qwen_coder,
    "llama": _llama,
    "mistral": _mistral,
    "deepseek": _deepseek,
    "signature": _signature,
}
