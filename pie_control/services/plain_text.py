"""Text in which special tokens stand that are none: what a user writes must not end a turn or begin one in another's
name.

Theory of operation. A tokenizer finds special tokens by their text, and a chat template puts the texts of users and its
own special tokens into one text. So before rendering, `guard_messages` puts a mark, a character that is no text, into
each marker in the messages. After rendering, `tokenize_rendered` gives the markers without a mark, which are the
template's, names that nobody can write, takes the marks out, and tokenizes with a copy of the tokenizer that knows the
markers by these names alone. So everything else (normalizing, splitting, merging) is as ever, and without markers in
the messages the tokens are those of the rendered text.

Markers are all special tokens, and the other added tokens that stand in the template, such as `<tool_response>`. The
latter may stand in the assistant's messages, which the model wrote: they are what it wrote (`<think>`). Names and marks
are noncharacters (U+FDD0 to U+FDEF), which texts do not have; in a guarded text they become U+FFFD.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import Any

import tokenizers

from ..errors import TooLong

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the library works on the thread that calls it, not on its own

MARK = "\ufdd0"
_OPEN, _CLOSE, _DIGITS = "\ufdd1", "\ufdef", [chr(0xFDD2 + digit) for digit in range(16)]
_NONCHARACTERS = re.compile("[\ufdd0-\ufdef]")
_WORDS = ("role", "type")
"""Keys of values that templates compare."""


def _name(number: int) -> str:
    """A name that no text contains."""
    return _OPEN + "".join(_DIGITS[int(digit, 16)] for digit in f"{number:x}") + _CLOSE


def _any_of(texts: Sequence[str]) -> str:
    """A pattern of the longest of these texts, as tokenizers look for them. Common beginnings are there once, so that
    the time is linear in what is searched, however many texts there are."""
    if not texts:
        return r"(?!)"
    rest: dict[str, list[str]] = {}
    for text in texts:
        if text:
            rest.setdefault(text[0], []).append(text[1:])
    ways = [re.escape(first) + (_any_of(tails) if any(tails) else "") for first, tails in rest.items()]
    return f"(?:{'|'.join(ways)})" + ("?" if "" in texts else "")


class _Markers:
    """Texts that must not be read as tokens."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._pattern = re.compile(_any_of(texts))
        self._heads = {text[:length] for text in texts for length in range(1, len(text))}
        self._tails = {text[-length:] for text in texts for length in range(1, len(text))}
        self._longest = max(map(len, texts), default=0)

    def found_in(self, text: str) -> bool:
        return self._pattern.search(text) is not None

    def replace(self, text: str, names: Mapping[str, str]) -> str:
        return self._pattern.sub(lambda found: names[found[0]], text)

    def break_up(self, text: Any) -> Any:
        """The text with a mark in each marker."""
        if not isinstance(text, str):
            return text
        return self._pattern.sub(lambda found: found[0][0] + MARK + found[0][1:], text)

    def guard(self, text: str) -> str:
        """The text with a mark in each marker, and at an end that could be part of a marker together with what the
        template puts beside it."""
        if _NONCHARACTERS.search(text):
            text = _NONCHARACTERS.sub("\ufffd", text)
        text = self.break_up(text)
        core = text.strip()  # templates do that
        if not core:
            return text
        lengths = range(1, min(self._longest, len(core) + 1))
        before = MARK if any(core[:length] in self._tails for length in lengths) else ""
        behind = MARK if any(core[-length:] in self._heads for length in lengths) else ""
        if not before and not behind:
            return text
        start = len(text) - len(text.lstrip())
        return text[:start] + before + core + behind + text[start + len(core) :]


class PlainText:
    """Keeps special tokens out of texts, for one tokenizer: the bytes of its tokenizer.json, the added tokens by id,
    and the source of the chat template."""

    text_tells: bool
    """Whether markers have no other forms than their text, which normalizing would make into it."""

    def __init__(self, data: bytes, added: Mapping[int, tokenizers.AddedToken], template: str, most: int) -> None:
        """`most`: tokens of one text."""
        self._most = most
        texts = {token.content: token.special for token in added.values() if len(token.content) > 1}
        special = [text for text, is_special in texts.items() if is_special]
        structural = [text for text in texts if not texts[text] and text.strip() and text in template]
        self._markers = _Markers([*special, *structural])
        self._of_assistant = _Markers(special)
        self._names = {text: _name(number) for number, text in enumerate([*special, *structural])}
        self._data = data
        self._ids = {token.content: number for number, token in added.items()}
        self._lock = Lock()
        self.text_tells = not any(token.normalized and token.content in self._names for token in added.values())

    def is_plain(self, text: str) -> bool:
        """Whether a tokenizer surely finds no marker in a text."""
        return self.text_tells and not self._markers.found_in(text)

    # ---- before rendering ----

    def guard_messages(self, messages: Sequence[Any]) -> list[Any]:
        """Messages for a chat template."""
        return [self._guard(one, self._of_assistant if _is_assistant(one) else self._markers) for one in messages]

    def guard_tools(self, tools: Sequence[Any]) -> list[Any]:
        """Tools for a chat template."""
        return [self._guard(one, self._markers) for one in tools]

    def guard_variables(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Variables for a chat template. Words without a marker stay as they are: templates compare them."""
        markers = self._markers
        return {
            name: markers.break_up(one) if _is_word(one) else self._guard(one, markers)
            for name, one in variables.items()
        }

    def _guard(self, value: Any, markers: _Markers) -> Any:
        match value:
            case str():
                return markers.guard(value)
            case list():
                return [self._guard(one, markers) for one in value]
            case dict():
                return {
                    markers.break_up(key): markers.break_up(one) if key in _WORDS else self._guard(one, markers)
                    for key, one in value.items()
                }
        return value

    # ---- afterwards ----

    def tokenize_rendered(self, rendered: str) -> list[int]:
        """Token ids of what a template made of guarded messages."""
        return self._encode(self._markers.replace(rendered, self._names).replace(MARK, ""))

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a text in which no marker is read as a token."""
        return self._encode(_NONCHARACTERS.sub("\ufffd", text))

    def _encode(self, text: str) -> list[int]:
        with self._lock:  # two threads must not make it twice: it may be large
            tokenizer, ids = self._renamed
        found = encode(tokenizer, text, self._most)
        return [ids.get(token, token) for token in found] if ids else found

    @cached_property
    def _renamed(self) -> tuple[tokenizers.Tokenizer, dict[int, int]]:
        """The tokenizer that knows the markers by their names, and its ids that differ: those that it should give."""
        described = json.loads(self._data)
        names = self._names
        for token in described["added_tokens"]:
            token["content"] = names.get(token["content"], token["content"])
        model = described["model"]
        if isinstance(model.get("vocab"), dict):
            model["vocab"] = {names.get(text, text): number for text, number in model["vocab"].items()}
        elif "vocab" in model:
            model["vocab"] = [[names.get(text, text), score] for text, score in model["vocab"]]
        if isinstance(model.get("unk_token"), str):
            model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
        described["post_processor"] = None  # it names special tokens, and adds none here
        tokenizer = load_tokenizer(json.dumps(described).encode())
        told = {name: encode(tokenizer, f"a{name}a", self._most) for name in names.values()}
        if not all(tokenizer.token_to_id(name) in ids for name, ids in told.items()):
            for token in described["added_tokens"]:  # a normalizer changes the names
                token["normalized"] = False
            tokenizer = load_tokenizer(json.dumps(described).encode())
        found = {tokenizer.token_to_id(names.get(text, text)): number for text, number in self._ids.items()}
        return tokenizer, {theirs: ours for theirs, ours in found.items() if theirs is not None and theirs != ours}


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and value.isascii() and value.replace("_", "").replace("-", "").isalnum()


def _is_assistant(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "assistant"


def load_tokenizer(data: bytes) -> tokenizers.Tokenizer:
    """The tokenizer of a tokenizer.json, which gives all tokens of a text and no others."""
    tokenizer = tokenizers.Tokenizer.from_buffer(data)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def encode(tokenizer: tokenizers.Tokenizer, text: str, most: int) -> list[int]:
    """Token ids; none are added. Unlike `encode`, a batch of one lets go of the GIL. Raises TooLong beyond `most`."""
    encoding = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0]
    if len(encoding) > most:  # the list is made, and given to the guest, while everybody else waits
        raise TooLong(f"the text has {len(encoding)} tokens, more than {most}: call with pieces of it")
    ids: list[int] = encoding.ids
    return ids
