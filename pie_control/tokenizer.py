"""Text to tokens and back, and chat templates. The only importer of `tokenizers` and `jinja2`."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

import tokenizers
from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers.decoders import DecodeStream

from .errors import ConfigError, InvalidArgument, Unsupported

SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _as_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _environment() -> ImmutableSandboxedEnvironment:
    """The names that the chat templates of published checkpoints use, as transformers defines them."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
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
    """Turns a stream of tokens to text, never half a character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)

    def push(self, tokens: Sequence[int]) -> str:
        """The text that these tokens complete; raises InvalidArgument."""
        self._tokenizer.check(tokens)
        inner = self._tokenizer.inner
        pieces = [self._stream.step(inner, token) for token in tokens]
        return "".join(piece for piece in pieces if piece)


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

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def encode(self, text: str) -> list[int]:
        """Token ids; special tokens written in the text are recognized, none are added."""
        ids: list[int] = self.inner.encode(text, add_special_tokens=False).ids
        return ids

    def check(self, tokens: Sequence[int]) -> None:
        """Raises InvalidArgument unless all are in the vocabulary."""
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
        if written is None:
            return b""
        byte_level = _BYTE_LEVEL
        if all(character in byte_level for character in written):
            return bytes(byte_level[character] for character in written)
        return self.inner.decode([token], skip_special_tokens=False).encode()

    @cached_property
    def _compiled_template(self) -> Any:
        return _environment().from_string(self._template or "")

    def format_chat(self, messages: str, tools: str, add_generation_prompt: bool) -> str:
        """Renders the chat template; `messages` and `tools` are JSON lists. Raises Unsupported, InvalidArgument."""
        if self._template is None:
            raise Unsupported("this model has no chat template: write the prompt yourself")
        variables = {name: _special(self._config, name) for name in SPECIAL_TOKENS}
        try:
            rendered: str = self._compiled_template.render(
                messages=_parse_list(messages, "messages"),
                tools=_parse_list(tools, "tools") if tools else None,
                add_generation_prompt=add_generation_prompt,
                **{name: value for name, value in variables.items() if value is not None},
            )
        except (TemplateError, TypeError, ValueError, KeyError, RecursionError) as error:
            raise InvalidArgument(f"the chat template refused the messages: {error}") from error
        return rendered


def _parse_list(text: str, what: str) -> list[Any]:
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
