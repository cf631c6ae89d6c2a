"""Chat templates. The only importer of `jinja2`."""

from __future__ import annotations

import json
import json.scanner
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import islice
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..errors import InvalidArgument, TooLong
from .nesting import check_depth
from .plain_text import MARK

DEFAULT, WITH_TOOLS = "default", "tool_use"
"""Names of templates, where a model has several."""
PROBE = "a text that is shown"
MOST_PIECES = 1000
"""Most pieces of what a template makes of one message that are looked at."""
LARGE = 64 << 10
"""Characters of a JSON text for which no other thread has a turn."""
RENDER_SECONDS = 2.0  # of the processor
"""After this time a template is given up, at its next piece of text."""


class _Generation(Extension):
    """`{% generation %}`, with which training marks the assistant's part; it prints what is in it."""

    tags = {"generation"}  # noqa: RUF012 (as the base class declares it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> None:
    raise TemplateError(message)


_ESCAPED = re.compile(f"[^\\x00-\\x7f{MARK}]")


def _as_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return _ESCAPED.sub(lambda found: json.dumps(found[0])[1:-1], text) if ensure_ascii else text


def _environment() -> ImmutableSandboxedEnvironment:
    """The names that the chat templates of published checkpoints use, as transformers defines them."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _as_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The texts of the special tokens that tokenizer_config.json names, as transformers hands them to templates."""
    extra = config.get("extra_special_tokens")
    named = {key: value for key, value in config.items() if key.endswith("_token")}
    named |= extra if isinstance(extra, Mapping) else {}
    texts = {key: value.get("content") if isinstance(value, Mapping) else value for key, value in named.items()}
    return {key: text for key, text in texts.items() if isinstance(text, str)}


def template_sources(config: Mapping[str, Any]) -> dict[str, str]:
    """The templates in tokenizer_config.json by their names: one alone is `default`."""
    found = config.get("chat_template")
    if isinstance(found, list):
        return {one["name"]: one["template"] for one in found}
    return {} if found is None else {DEFAULT: found}


def _as_parts(text: str) -> list[Any]:
    return [{"type": "text", "text": text}]


def _with_parts(message: Any) -> Any:
    """A message whose content is a list."""
    if isinstance(message, dict) and isinstance(message.get("content"), str):
        return {**message, "content": _as_parts(message["content"])}
    return message


@dataclass(frozen=True)
class Conversation:
    """Messages, and further variables that the template may read, such as `enable_thinking`."""

    messages: list[Any]
    variables: Mapping[str, Any]


def parse_conversation(text: str) -> Conversation:
    """A JSON list of messages, or an object that has it with variables; raises InvalidArgument."""
    if not text.lstrip().startswith("{"):
        return Conversation(parse_list(text, "messages"), {})
    value = _parsed(text, "messages")
    if not value.keys() <= {"messages", "variables"} or not isinstance(value.get("messages"), list):
        raise InvalidArgument("messages must be a JSON list, or an object with the list as messages, and variables")
    variables = value.get("variables", {})
    if not isinstance(variables, dict):
        raise InvalidArgument(f"variables must be a JSON object, not a {type(variables).__name__}")
    return Conversation(value["messages"], variables)


class ChatTemplate:
    """The chat template of a model: program text of whoever published it, so its time and its output are bounded."""

    def __init__(self, source: str, config: Mapping[str, Any]) -> None:
        self.source = source
        self._variables = special_tokens(config)

    @cached_property
    def _compiled(self) -> Any:
        return _environment().from_string(self.source)

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether it shows a text only as a part of a content, which is a list then, as templates of models with images
        do."""
        return not self._shows(PROBE) and self._shows(_as_parts(PROBE))

    def _shows(self, content: Any) -> bool:
        messages = [{"role": "user", "content": content}]
        try:
            pieces = self._compiled.generate(
                messages=messages, tools=None, documents=None, add_generation_prompt=False, **self._variables
            )
            return PROBE in "".join(islice(pieces, MOST_PIECES))
        except Exception:  # it is code, and may want more than one message
            return False

    def render(
        self,
        conversation: Conversation,
        tools: list[Any] | None,
        add_generation_prompt: bool,
        longest: int,
    ) -> str:
        """The conversation as text of at most `longest` characters. Raises InvalidArgument, TooLong."""
        messages = conversation.messages
        if self._takes_parts:
            messages = [_with_parts(message) for message in messages]
        deadline = time.thread_time() + RENDER_SECONDS
        pieces: list[str] = []
        size = 0
        try:
            own = {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt}
            given = {"documents": None, **conversation.variables}
            for piece in self._compiled.generate({**given, **self._variables, **own}):
                pieces.append(piece)
                size += len(piece)
                if size > longest or time.thread_time() > deadline:
                    break
        except Exception as error:  # the template is code, and the messages may be anything
            raise InvalidArgument(f"the chat template refused the messages: {error}") from error
        if size > longest:
            raise TooLong(f"the chat template makes more than {longest} characters: give fewer messages")
        if time.thread_time() > deadline:
            raise InvalidArgument(f"the chat template takes more than {RENDER_SECONDS:g} s: give fewer messages")
        return "".join(pieces)


def parse_list(text: str, what: str) -> list[Any]:
    """The JSON list of messages or tools; raises InvalidArgument."""
    value = _parsed(text, what)
    if not isinstance(value, list):
        raise InvalidArgument(f"{what} must be a JSON list, not a {type(value).__name__}")
    return value


class _Decoder(json.JSONDecoder):
    """Lists and objects are made in Python, so other threads have turns; strings are not."""

    def __init__(self) -> None:
        super().__init__()
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]


def _parsed(text: str, what: str) -> Any:
    check_depth(text, what)
    try:
        value = json.loads(text, cls=None if len(text) <= LARGE else _Decoder)
    except (ValueError, RecursionError) as error:  # such as a number of more digits than Python reads
        raise InvalidArgument(f"{what} is not JSON: {error}") from error
    if "\\ud" in text.lower():
        try:
            for piece in json.JSONEncoder(ensure_ascii=False).iterencode(value):
                piece.encode()
        except UnicodeEncodeError:
            raise InvalidArgument(f"{what} has half of a surrogate pair, which is no text: leave it out") from None
    return value
