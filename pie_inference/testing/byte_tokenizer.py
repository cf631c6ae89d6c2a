"""A tokenizer of 256 bytes and three special tokens, for models without a vocabulary of their own (tests, fakes)."""

from __future__ import annotations

import json
from collections.abc import Sequence

SPECIAL_TOKENS = ("<|begin|>", "<|end|>", "<|turn|>")
BEGIN, END, TURN = range(256, 259)
VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)

CHAT_TEMPLATE = (
    "{% for message in messages %}<|turn|>{{ message['role'] }}\n{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


def tokenizer_config() -> dict[str, object]:
    """The content of tokenizer_config.json."""
    return {"bos_token": "<|begin|>", "eos_token": "<|end|>", "chat_template": CHAT_TEMPLATE}


def tokenizer_json(vocab_size: int = VOCAB_SIZE, more: Sequence[str] = ()) -> bytes:
    """A tokenizer.json in which token b is byte b. The special tokens come behind them, then `more`. Ids above these
    are fillers that no text produces."""
    special = [*SPECIAL_TOKENS, *more]
    fillers = [f"<|unused{number}|>" for number in range(256 + len(special), vocab_size)]
    added = [_added_token(256 + number, content) for number, content in enumerate([*special, *fillers])]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": {symbol: byte for byte, symbol in enumerate(_byte_symbols())}, "merges": []}
    pipeline = {"pre_tokenizer": byte_level, "decoder": byte_level, "model": model}
    return json.dumps({"version": "1.0", "added_tokens": added, **pipeline}).encode()


def _added_token(number: int, content: str) -> dict[str, object]:
    return {
        "id": number,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def _byte_symbols() -> list[str]:
    """The printable characters that byte-level BPE writes for bytes (GPT-2's table)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)]
