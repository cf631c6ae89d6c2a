"""The tokenizer files of a model folder, read but not interpreted: tokenizing is the control layer's work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checkpoint import read_json
from .errors import CheckpointError


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
        raise CheckpointError(f"{path}: unreadable ({error.strerror}); only fast tokenizers are supported") from error
    return TokenizerFiles(tokenizer, _tokenizer_config(folder), _stop_tokens(folder, config))


def _tokenizer_config(folder: Path) -> dict[str, object]:
    """tokenizer_config.json, with the chat template of chat_template.jinja where that file exists."""
    config: dict[str, object] = _read_optional(folder / "tokenizer_config.json")
    template = folder / "chat_template.jinja"
    return {**config, "chat_template": template.read_text("utf-8")} if template.exists() else config


def _stop_tokens(folder: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """`eos_token_id` of generation_config.json, else of config.json: a number, a list or nothing."""
    tokens = _read_optional(folder / "generation_config.json").get("eos_token_id", config.get("eos_token_id"))
    if tokens is None:
        return ()
    return tuple(tokens) if isinstance(tokens, list) else (tokens,)


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}
