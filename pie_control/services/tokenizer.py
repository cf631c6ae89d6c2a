"""Text to tokens and back, and conversations to tokens.

Methods may run on threads beside the event loop, several of one tokenizer at a time: those of the library have no state
that a call changes, and what is made at the first use is the same whoever makes it.
"""

from __future__ import annotations

import base64
import codecs
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

from ..calls.tokens import longest_text
from ..errors import ConfigError, InvalidArgument, TooLong, Unsupported
from .chat_template import (
    DEFAULT,
    WITH_TOOLS,
    ChatTemplate,
    Conversation,
    parse_conversation,
    parse_list,
    template_sources,
)
from .plain_text import MARK, PlainText, encode, load_tokenizer

CHARACTERS = 8
"""A text has at most so many for each token that it may have: more stand for none. To tokenize a million takes a
thread up to two seconds."""
SHORT_TEXT = 1000
"""Characters that take less than about a millisecond, so that everything else may wait for them."""
SHORT_TOKENS = 250
"""Tokens that take less than about a millisecond."""
REMEMBERED_TOKENS = 1 << 14
"""Tokens whose bytes are known: a model writes few of its tokens again and again."""
LONGEST_CHARACTER = 4
"""Tokens, if each is a byte."""
BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
REPLACEMENT = "\ufffd"


class Detokenizer:
    """Turns a stream of tokens to text, never half a character. Time is linear in the tokens, whatever they are. The
    text goes on behind another one, as a generation does: it keeps a space with which it begins."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._context: list[int] = []
        self._pending: list[int] = []

    @property
    def vocab_size(self) -> int:
        """The size of its model's vocabulary."""
        return self._tokenizer.vocab_size

    def push(self, tokens: Sequence[int]) -> str:
        """The text that these tokens complete; raises InvalidArgument."""
        self._tokenizer.check(tokens)
        if self._tokenizer.is_byte_level:
            return self._decode(b"".join(map(self._tokenizer.printed_bytes, tokens)))
        return "".join(map(self._push_beside, tokens))

    def push_one(self, token: int) -> str:
        """The text that this token completes; raises InvalidArgument."""
        if self._tokenizer.is_byte_level:
            return self._decode(self._tokenizer.printed_bytes(token))
        return self.push((token,))

    def _push_beside(self, token: int) -> str:
        """For decoders that look at neighbours: decodes behind a word, which is never left without its space, and the
        tokens of the piece before, and leaves these out."""
        self._pending.append(token)
        context = [*self._tokenizer.word, *self._context]
        before = self._tokenizer.decode(context)
        text = self._tokenizer.decode([*context, *self._pending])
        if text.endswith(REPLACEMENT) and len(self._pending) < LONGEST_CHARACTER:
            return ""
        self._context, self._pending = self._pending, []
        return text[len(before) :]


class Tokenizer:
    """The tokenizer of a model, from the bytes of its tokenizer.json and its tokenizer_config.json."""

    def __init__(self, data: bytes, config: Mapping[str, Any], vocab_size: int, max_context: int = 0) -> None:
        """`vocab_size`, `max_context`: of the model. Raises ConfigError."""
        self._most = longest_text(max_context)
        try:
            self.inner = load_tokenizer(data)
        except Exception as error:  # the library raises plain Exceptions
            raise ConfigError(f"tokenizer.json cannot be read: {error}") from error
        sources = template_sources(config)
        used = {name: sources[name] for name in (DEFAULT, WITH_TOOLS) if name in sources}
        self.vocab_size = vocab_size
        self._templates = {name: ChatTemplate(source, config) for name, source in used.items()}
        self._added = self.inner.get_added_tokens_decoder()
        self._plain_text = PlainText(data, self._added, "\n".join(used.values()), self._most)
        self.is_byte_level = _is_byte_level(self.inner.decoder)
        self.printed_bytes = lru_cache(REMEMBERED_TOKENS)(self._printed_bytes)
        """Bytes that a token adds to text: none if it is special. Raises InvalidArgument."""

    @property
    def has_chat_template(self) -> bool:
        return DEFAULT in self._templates

    def encode(self, text: str, special_tokens: bool = True) -> list[int]:
        """Token ids; none are added. Special tokens written in the text are recognized, or are plain text. Raises
        TooLong."""
        self._check_size(text)
        if special_tokens or self._plain_text.is_plain(text):
            return encode(self.inner, text, self._most)
        return self._plain_text.tokenize(text)

    @property
    def frame(self) -> tuple[list[int], list[int]]:
        """Tokens that are put before and behind a text that is for the model, and which `encode` leaves out."""
        plain, whole = (self.inner.encode("a", add_special_tokens=each).ids for each in (False, True))
        begin = len(whole) - len(plain)
        while begin and whole[begin : begin + len(plain)] != plain:
            begin -= 1
        return whole[:begin], whole[begin + len(plain) :]

    def check(self, tokens: Sequence[int]) -> None:
        """Raises InvalidArgument unless all are in the vocabulary."""
        if len(tokens) > self._most:
            raise InvalidArgument(f"{len(tokens)} tokens are more than {self._most}: call with fewer at a time")
        if tokens and max(tokens) >= self.vocab_size:
            raise InvalidArgument(f"token {max(tokens)} is not in the vocabulary of {self.vocab_size}")

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of the tokens without special ones; invalid bytes become U+FFFD."""
        self.check(tokens)
        texts: list[str] = self.inner.decode_batch([tokens], skip_special_tokens=True)  # lets go of the GIL
        return texts[0]

    @cached_property
    def word(self) -> list[int]:
        """A token that is a letter or more, alone; none if no token is. Decoders take away the space with which a text
        begins, so something has to stand before what shall keep it."""
        known = (token for token in range(self.vocab_size) if token not in self._added)
        plain = (token for token in known if not BYTE_TOKEN.fullmatch(self.inner.id_to_token(token) or ""))
        return next(([token] for token in plain if self.decode([token]).isalpha()), [])

    @property
    def has_vocabulary(self) -> bool:
        """Whether `vocabulary` is there: it is made when it is first read, which takes long."""
        return "vocabulary" in vars(self)

    def is_plain(self, text: str) -> bool:
        """Whether there is no special token in a text, so that it need not be read without."""
        return self._plain_text.is_plain(text)

    @cached_property
    def vocabulary(self) -> str:
        """Bytes of every token: base64, one line per token id."""
        return "\n".join(base64.b64encode(self._bytes_of(token)).decode() for token in range(self.vocab_size))

    def _bytes_of(self, token: int) -> bytes:
        written = self.inner.id_to_token(token)
        if written is None or token in self._added:
            return (written or "").encode()
        if self.is_byte_level:
            try:
                return bytes(_BYTE_LEVEL[character] for character in written)
            except KeyError:  # outside of the alphabet of bytes: the library takes it as it is
                return written.encode()
        byte = BYTE_TOKEN.fullmatch(written)
        return bytes([int(byte[1], 16)]) if byte else written.replace("▁", " ").encode()  # as SentencePiece writes them

    def _printed_bytes(self, token: int) -> bytes:
        self.check((token,))
        added = self._added.get(token)
        return b"" if added is not None and added.special else self._bytes_of(token)

    # ---- chat ----

    def format_chat(self, messages: str, tools: str, add_generation_prompt: bool) -> str:
        """Renders the chat template; `messages` and `tools` are JSON lists (see
        `parse_conversation`). Raises Unsupported, InvalidArgument."""
        template = self._chat_template(messages, tools)
        parsed = parse_list(tools, "tools") if tools else None
        return template.render(parse_conversation(messages), parsed, add_generation_prompt, CHARACTERS * self._most)

    def encode_chat(self, messages: str, tools: str, add_generation_prompt: bool) -> list[int]:
        """Token ids of what `format_chat` renders, but text of messages and tools is never read as special tokens."""
        template, plain = self._chat_template(messages, tools), self._plain_text
        given = parse_conversation(messages)
        guarded = Conversation(plain.guard_messages(given.messages), plain.guard_variables(given.variables))
        offered = plain.guard_tools(parse_list(tools, "tools")) if tools else None
        rendered = template.render(guarded, offered, add_generation_prompt, CHARACTERS * self._most)
        if plain.text_tells and MARK not in rendered:
            return encode(self.inner, rendered, self._most)
        return plain.tokenize_rendered(rendered)

    def _chat_template(self, messages: str, tools: str) -> ChatTemplate:
        """The template for chats with such tools."""
        default = self._templates.get(DEFAULT)
        template = self._templates.get(WITH_TOOLS, default) if tools else default
        if template is None:
            raise Unsupported(
                "this model has no chat template: write the prompt yourself, by `fill` or /v1/completions, "
                "or put a chat_template.jinja into its folder"
            )
        self._check_size(messages, tools)
        return template

    def _check_size(self, *texts: str) -> None:
        size, most = sum(map(len, texts)), CHARACTERS * self._most
        if size > most:
            raise TooLong(f"a text of {size} characters is longer than {most}: call with pieces of it")


def _is_byte_level(decoder: Any) -> bool:
    """Whether a decoder makes bytes of characters, and nothing else: alone, or as the only one of a sequence."""
    if decoder is None:
        return False
    described = json.loads(decoder.__getstate__())
    kinds = {one["type"] for one in described.get("decoders", [described])}
    return "ByteLevel" in kinds and kinds <= {"ByteLevel", "Fuse"}


def _byte_level_alphabet() -> dict[str, int]:
    """Byte of each character of byte-level BPE: printable Latin-1 stands for itself, the rest from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_LEVEL = _byte_level_alphabet()
