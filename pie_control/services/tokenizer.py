"""Text to tokens and back, and chat templates. The only importer of `tokenizers` and `jinja2`."""

from __future__ import annotations

import base64
import codecs
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

import tokenizers
from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers.decoders import ByteLevel

from ..errors import ConfigError, InvalidArgument, Unsupported
from .nesting import check_depth

SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")

MAX_TEXT = 512 << 10
"""Characters in one call: everything else waits while a text is tokenized (about 0.5 s per million)."""
MAX_TOKENS = 128 << 10
"""Of one call that makes text."""
LONGEST_CHARACTER = 4
"""Tokens, if each is a byte."""
BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
REPLACEMENT = "\ufffd"


class _Generation(Extension):
    """`{% generation %}`, with which training marks the assistant's part; it prints what is in it."""

    tags = {"generation"}  # noqa: RUF012 (as the base class declares it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _as_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    """The names that the chat templates of published checkpoints use, as transformers defines them."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _as_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


def _special(config: Mapping[str, Any], name: str) -> str | None:
    value = config.get(name)
    return value.get("content") if isinstance(value, Mapping) else value


def _template_source(config: Mapping[str, Any]) -> str | None:
    """A template, or the one named default of several."""
    found = config.get("chat_template")
    if isinstance(found, list):
        return next((one["template"] for one in found if one.get("name") == "default"), None)
    return found


class Detokenizer:
    """Turns a stream of tokens to text, never half a character. Time is linear in the tokens, whatever they are."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")
        self._context: list[int] = []
        self._pending: list[int] = []

    def push(self, tokens: Sequence[int]) -> str:
        """The text that these tokens complete; raises InvalidArgument."""
        self._tokenizer.check(tokens)
        if self._tokenizer.is_byte_level:
            return self._bytes.decode(b"".join(map(self._tokenizer.printed_bytes, tokens)))
        return "".join(map(self._push_one, tokens))

    def _push_one(self, token: int) -> str:
        """For decoders that look at neighbours: decodes behind the tokens of the piece before, and leaves that out."""
        self._pending.append(token)
        before = self._tokenizer.decode(self._context)
        text = self._tokenizer.decode([*self._context, *self._pending])
        if text.endswith(REPLACEMENT) and len(self._pending) < LONGEST_CHARACTER:
            return ""
        self._context, self._pending = self._pending, []
        return text[len(before) :]


class Tokenizer:
    """The tokenizer of a model, from the bytes of its tokenizer.json and its tokenizer_config.json."""

    def __init__(self, data: bytes, config: Mapping[str, Any], vocab_size: int) -> None:
        try:
            self.inner = tokenizers.Tokenizer.from_buffer(data)
        except Exception as error:  # the library raises plain Exceptions
            raise ConfigError(f"tokenizer.json cannot be read: {error}") from error
        self._config = config
        self._vocab_size = vocab_size
        self._template = _template_source(config)
        self._added = self.inner.get_added_tokens_decoder()
        self.is_byte_level = isinstance(self.inner.decoder, ByteLevel)

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def encode(self, text: str) -> list[int]:
        """Token ids; special tokens written in the text are recognized, none are added. Raises InvalidArgument."""
        _check_size(text)
        ids: list[int] = self.inner.encode(text, add_special_tokens=False).ids
        return ids

    def check(self, tokens: Sequence[int]) -> None:
        """Raises InvalidArgument unless all are in the vocabulary."""
        if len(tokens) > MAX_TOKENS:
            raise InvalidArgument(f"{len(tokens)} tokens are more than {MAX_TOKENS}: call with fewer at a time")
        if tokens and max(tokens) >= self._vocab_size:
            raise InvalidArgument(f"token {max(tokens)} is not in the vocabulary of {self._vocab_size}")

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of the tokens without special ones; invalid bytes become U+FFFD."""
        self.check(tokens)
        text: str = self.inner.decode(tokens, skip_special_tokens=True)
        return text

    @cached_property
    def vocabulary(self) -> str:
        """Bytes of every token: base64, one line per token id."""
        return "\n".join(base64.b64encode(self._bytes_of(token)).decode() for token in range(self._vocab_size))

    def _bytes_of(self, token: int) -> bytes:
        written = self.inner.id_to_token(token)
        if written is None or token in self._added:
            return (written or "").encode()
        if self.is_byte_level:
            return bytes(_BYTE_LEVEL[character] for character in written)
        byte = BYTE_TOKEN.fullmatch(written)
        return bytes([int(byte[1], 16)]) if byte else written.replace("▁", " ").encode()  # as SentencePiece writes them

    def printed_bytes(self, token: int) -> bytes:
        """Bytes that a token adds to text: none if it is special."""
        added = self._added.get(token)
        return b"" if added is not None and added.special else self._bytes_of(token)

    @cached_property
    def _compiled_template(self) -> Any:
        return _environment().from_string(self._template or "")

    def format_chat(self, messages: str, tools: str, add_generation_prompt: bool) -> str:
        """Renders the chat template; `messages` and `tools` are JSON lists. Raises Unsupported, InvalidArgument."""
        if self._template is None:
            raise Unsupported("this model has no chat template: write the prompt yourself")
        _check_size(messages, tools)
        variables = {name: _special(self._config, name) for name in SPECIAL_TOKENS}
        try:
            rendered: str = self._compiled_template.render(
                messages=_parse_list(messages, "messages"),
                tools=_parse_list(tools, "tools") if tools else None,
                add_generation_prompt=add_generation_prompt,
                **{name: value for name, value in variables.items() if value is not None},
            )
        except InvalidArgument:
            raise
        except Exception as error:  # the template is code, and the messages may be anything
            raise InvalidArgument(f"the chat template refused the messages: {error}") from error
        return rendered


def _check_size(*texts: str) -> None:
    size = sum(map(len, texts))
    if size > MAX_TEXT:
        raise InvalidArgument(f"a text of {size} characters is longer than {MAX_TEXT}: call with pieces of it")


def _parse_list(text: str, what: str) -> list[Any]:
    check_depth(text, what)
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidArgument(f"{what} is not JSON: {error}") from error
    if not isinstance(value, list):
        raise InvalidArgument(f"{what} must be a JSON list, not a {type(value).__name__}")
    return value


def _byte_level_alphabet() -> dict[str, int]:
    """Byte of each character of byte-level BPE: printable Latin-1 stands for itself, the rest from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_LEVEL = _byte_level_alphabet()
