"""Reads the tokenizer files of a model folder. It does not interpret them: the control layer tokenizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..json_files import read_json

SLOW_TOKENIZERS = ("tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")

MOST = (1 << 63) - 1
"""The largest integer in a message."""


@dataclass(frozen=True)
class TokenizerFiles:
    """The files in the form of `ModelDescription`."""

    tokenizer: bytes
    config: dict[str, object]
    stop_tokens: tuple[int, ...]


def read_tokenizer_files(folder: Path, config: Mapping[str, Any]) -> TokenizerFiles:
    """Reads the tokenizer files of a folder; `config` is its config.json. Raises CheckpointError if tokenizer.json is
    missing."""
    path = folder / "tokenizer.json"
    try:
        tokenizer = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: unreadable ({error.strerror}); {_advice(folder)}") from error
    return TokenizerFiles(tokenizer, _tokenizer_config(folder), _stop_tokens(folder, config))


def _advice(folder: Path) -> str:
    if any((folder / name).exists() for name in SLOW_TOKENIZERS):
        return (
            "the folder has only the files of a slow tokenizer; convert them with transformers: "
            f"AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) writes tokenizer.json (FOLDER: {folder})"
        )
    return "only fast tokenizers are supported, which are stored in tokenizer.json"


def _tokenizer_config(folder: Path) -> dict[str, object]:
    """tokenizer_config.json, with the special tokens of special_tokens_map.json if it names none, and with the chat
    template from the file where transformers would look for it. Integers that no message can hold are left out:
    transformers writes 10**30 as `model_max_length` where there is none."""
    read = _read_optional(folder / "special_tokens_map.json") | _read_optional(folder / "tokenizer_config.json")
    config = {key: value for key, value in read.items() if not isinstance(value, int) or -MOST <= value <= MOST}
    template = _chat_template(folder)
    return config if template is None else {**config, "chat_template": template}


def _chat_template(folder: Path) -> object | None:
    """The chat template from a separate file; None if there is no such file."""
    try:
        return (folder / "chat_template.jinja").read_text("utf-8")
    except FileNotFoundError:
        return _read_optional(folder / "chat_template.json").get("chat_template")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / 'chat_template.jinja'}: unreadable: {error}") from error


def _stop_tokens(folder: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """`eos_token_id` of generation_config.json, else of config.json; it may be a number, a list or missing."""
    generation = folder / "generation_config.json"
    tokens = _read_optional(generation).get("eos_token_id")
    if tokens is None:
        tokens = config.get("eos_token_id")
    found = tokens if isinstance(tokens, list) else [] if tokens is None else [tokens]
    if not all(isinstance(token, int) for token in found):
        raise CheckpointError(f"{folder}: eos_token_id {tokens!r} is neither a token id nor a list of token ids")
    return tuple(found)


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}
