"""The tokenizer files of a model folder, read but not interpreted: tokenizing is the control layer's work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from .checkpoint import read_json

SLOW_TOKENIZERS = ("tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


@dataclass(frozen=True)
class TokenizerFiles:
    """As they go into `ModelDescription`."""

    tokenizer: bytes
    config: dict[str, object]
    stop_tokens: tuple[int, ...]


def read_tokenizer_files(folder: Path, config: Mapping[str, Any]) -> TokenizerFiles:
    """Reads them beside the model's `config`. Raises CheckpointError where tokenizer.json is missing."""
    path = folder / "tokenizer.json"
    try:
        tokenizer = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: unreadable ({error.strerror}); {_advice(folder)}") from error
    return TokenizerFiles(tokenizer, _tokenizer_config(folder), _stop_tokens(folder, config))


def _advice(folder: Path) -> str:
    if any((folder / name).exists() for name in SLOW_TOKENIZERS):
        return (
            "the folder has the files of a slow tokenizer only; convert them with transformers: "
            f"AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) writes tokenizer.json (FOLDER: {folder})"
        )
    return "only fast tokenizers are supported, which are in that file"


def _tokenizer_config(folder: Path) -> dict[str, object]:
    """tokenizer_config.json with the special tokens of special_tokens_map.json where it names none, and with the chat
    template of the file that transformers would take it from."""
    config: dict[str, object] = {
        **_read_optional(folder / "special_tokens_map.json"),
        **_read_optional(folder / "tokenizer_config.json"),
    }
    template = _chat_template(folder)
    return config if template is None else {**config, "chat_template": template}


def _chat_template(folder: Path) -> object | None:
    """Of a file of its own; None where there is none."""
    try:
        return (folder / "chat_template.jinja").read_text("utf-8")
    except FileNotFoundError:
        return _read_optional(folder / "chat_template.json").get("chat_template")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / 'chat_template.jinja'}: unreadable: {error}") from error


def _stop_tokens(folder: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """`eos_token_id` of generation_config.json, else of config.json: a number, a list or nothing."""
    generation = folder / "generation_config.json"
    tokens = _read_optional(generation).get("eos_token_id")
    if tokens is None:
        tokens = config.get("eos_token_id")
    found = tokens if isinstance(tokens, list) else [] if tokens is None else [tokens]
    if not all(isinstance(token, int) for token in found):
        raise CheckpointError(f"{folder}: eos_token_id {tokens!r} is neither a token's number nor a list of them")
    return tuple(found)


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}
