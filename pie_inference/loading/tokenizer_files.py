"""Reads the tokenizer files of a model folder, and what generation_config.json says. It does not interpret them: the
control layer tokenizes, and programs sample."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ..errors import CheckpointError
from ..json_files import check_depth, read_json
from .checkpoint import advice

SLOW_TOKENIZERS = (
    *("tokenizer.model", "sentencepiece.bpe.model", "spiece.model"),
    *("tekken.json", "vocab.json", "vocab.txt"),
)

MOST = (1 << 63) - 1
"""The largest integer in a message."""
GENERATION = "generation_config.json"
MORE_TEMPLATES = "additional_chat_templates"
"""A folder of chat templates, which are called as their files."""
SAMPLING: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 100),
    "top_k": (0, MOST),
    "top_p": (1e-6, 1),
    "min_p": (0, 1),
    "typical_p": (1e-6, 1),
    "repetition_penalty": (1e-3, 1e3),
}
"""How a checkpoint may want to be sampled: names as in transformers and in samplers; least and most of each."""


@dataclass(frozen=True)
class TokenizerFiles:
    """The files in the form of `ModelDescription`."""

    tokenizer: bytes
    config: dict[str, object]
    stop_tokens: tuple[int, ...]
    sampling: dict[str, float]


def read_tokenizer_files(folder: Path, config: Mapping[str, Any], size: int) -> TokenizerFiles:
    """Reads the tokenizer files of a folder; `config` is its config.json, `size` the model's vocabulary. Raises
    CheckpointError if tokenizer.json is missing."""
    path = folder / "tokenizer.json"
    try:
        tokenizer = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: unreadable ({error.strerror}); {_advice(folder)}") from error
    generation, told = _read_optional(folder / GENERATION), _tokenizer_config(folder)
    tokenizer = _with_tokens(tokenizer, folder, told, size)
    stop_tokens = dict.fromkeys((*_stop_tokens(folder, generation, config), *_ends_of(tokenizer, told)))
    return TokenizerFiles(tokenizer, told, tuple(stop_tokens), _sampling(folder / GENERATION, generation))


class _AddedToken(msgspec.Struct):
    id: int = 0
    content: str = ""
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False


FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class _AddedTokens(msgspec.Struct):
    added_tokens: list[_AddedToken] = []


class _Words(msgspec.Struct):
    vocab: dict[str, int] | list[Any]


class _Tokenizer(msgspec.Struct):
    model: _Words
    added_tokens: list[_AddedToken] = []


def _with_tokens(tokenizer: bytes, folder: Path, config: Mapping[str, object], size: int) -> bytes:
    """A tokenizer.json with the added tokens of the files beside it, as transformers reads them: what these say of a
    token counts, and those with a name are special. In most folders all files say the same, and it stays as it is. No
    token is added that the model lacks, such as one for padding. Raises CheckpointError."""
    known = {token.content: token for token in _added_tokens(tokenizer)}
    named = [_text_of(config[name]) for name in config if name.endswith("_token")]
    listed = [
        msgspec.structs.replace(token, special=token.special or token.content in named)
        for token in _listed_tokens(folder, config, known, named)
    ]
    listed = [token for token in listed if token.content and (token.content in known or token.id < size)]
    new = [token for token in listed if known.get(token.content) != token]
    if not new:
        return tokenizer
    import tokenizers

    made = [tokenizers.AddedToken(**{name: getattr(one, name) for name in (*FLAGS, "content")}) for one in new]
    try:
        whole = tokenizers.Tokenizer.from_buffer(tokenizer)
    except Exception:  # the library raises plain Exceptions; who makes a tokenizer of it says what is wrong
        return tokenizer
    whole.add_tokens(made)
    return whole.to_str().encode()


def _listed_tokens(
    folder: Path, config: Mapping[str, object], known: Mapping[str, _AddedToken], named: Sequence[object]
) -> list[_AddedToken]:
    """The added tokens that tokenizer_config.json lists; or else the `known` ones, and those that added_tokens.json has
    beside them. They are in the order of their ids."""
    listed, path = config.get("added_tokens_decoder"), folder / "tokenizer_config.json"
    try:
        if listed is not None:
            given = msgspec.convert(listed, dict[int, _AddedToken], strict=False)
            return [msgspec.structs.replace(given[number], id=number) for number in sorted(given)]
        path = folder / "added_tokens.json"
        ids = msgspec.convert(_read_optional(path), dict[str, int])
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path}: added tokens: {error}: correct it there, or take them out") from None
    more = config.get("additional_special_tokens")
    special = [*named, *(_text_of(each) for each in (more if isinstance(more, list) else ()))]
    kinds = {text: text in special for text in sorted(ids, key=ids.__getitem__) if text not in known}
    return [
        *known.values(),
        *(_AddedToken(ids[text], text, normalized=not kind, special=kind) for text, kind in kinds.items()),
    ]


def check_vocabulary(folder: Path, tokenizer: bytes, size: int) -> None:
    """Raises CheckpointError if a model with a vocabulary of this size lacks words of its tokenizer. Tokens that were
    added may be missing: some checkpoints have such for images, which the model for texts alone has not."""
    try:
        read = msgspec.json.decode(tokenizer, type=_Tokenizer)
    except msgspec.ValidationError:
        return  # who makes a tokenizer of it says what is wrong
    except msgspec.DecodeError as error:
        path = folder / "tokenizer.json"
        raise CheckpointError(f"{path}: unreadable: {error}; {advice(path)}") from None
    words = read.model.vocab
    tokens = set(words.values() if isinstance(words, dict) else range(len(words)))
    most = max(tokens.difference(added.id for added in read.added_tokens), default=0)
    if most >= size:
        raise CheckpointError(
            f"{folder / 'config.json'}: vocab_size is {size}, and tokenizer.json has a token {most}: the files are of "
            "different models; get the checkpoint's files again"
        )


def _advice(folder: Path) -> str:
    if any((folder / name).exists() for name in SLOW_TOKENIZERS):
        return (
            "the folder has only the files of a slow tokenizer; convert them with transformers: "
            f"AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) writes tokenizer.json (FOLDER: {folder})"
        )
    return (
        "only fast tokenizers are supported, which are stored in tokenizer.json: get it from where the weights are "
        "from, or from the model that they were trained from"
    )


def _tokenizer_config(folder: Path) -> dict[str, object]:
    """tokenizer_config.json, with the special tokens of special_tokens_map.json if it names none, and with the chat
    templates from files of their own where transformers would look for them. Integers that no message can hold are left
    out: transformers writes 10**30 as `model_max_length` where there is none."""
    path = folder / "tokenizer_config.json"
    config: dict[str, object] = _held(_read_optional(folder / "special_tokens_map.json") | _read_optional(path))
    template = _templates_of_files(folder)
    if template is None and (template := config.get("chat_template")) is None:
        return config
    return {**config, "chat_template": _checked_template(folder, template)}


def _held(value: Any) -> Any:
    """A value without the integers that no message can hold."""
    if isinstance(value, dict):
        return {key: _held(each) for key, each in value.items() if not _is_huge(each)}
    return [_held(each) for each in value if not _is_huge(each)] if isinstance(value, list) else value


def _is_huge(value: object) -> bool:
    return isinstance(value, int) and not -MOST <= value <= MOST


def _templates_of_files(folder: Path) -> object | None:
    """The chat template from a file of its own, or several of them with their names; None if there is no such file."""
    paths = {"default": folder / "chat_template.jinja"}
    paths |= {path.stem: path for path in sorted((folder / MORE_TEMPLATES).glob("*.jinja"))}
    found = {name: _text(path) for name, path in paths.items() if path.exists()}
    if not found:
        return _read_optional(folder / "chat_template.json").get("chat_template")
    return found["default"] if found.keys() == {"default"} else found


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: unreadable: {error}") from error


def _checked_template(folder: Path, template: object) -> object:
    """A chat template, or a list of several with their names. Raises CheckpointError for anything else."""
    if isinstance(template, dict):
        template = [{"name": name, "template": text} for name, text in template.items()]
    listed = template if isinstance(template, list) else [{"name": "default", "template": template}]
    for one in listed:
        if not isinstance(one, dict) or not all(isinstance(one.get(key), str) for key in ("name", "template")):
            raise CheckpointError(
                f"{folder}: chat_template in tokenizer_config.json or chat_template.json must be a text, or a list of "
                "objects with name and template: correct it there, or get the checkpoint's files again"
            )
    return template


def _stop_tokens(folder: Path, generation: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[int, ...]:
    """`eos_token_id` of generation_config.json, else of config.json, else of its `text_config`; it may be a number, a
    list or missing."""
    parts = (generation, config, config.get("text_config"))
    found = (part.get("eos_token_id") for part in parts if isinstance(part, Mapping))
    tokens = next((each for each in found if each is not None), None)
    listed = tokens if isinstance(tokens, list) else [] if tokens is None else [tokens]
    if not all(isinstance(token, int) and not isinstance(token, bool) and not _is_huge(token) for token in listed):
        raise CheckpointError(f"{folder}: eos_token_id {tokens!r} is neither a token id nor a list of token ids")
    return tuple(listed)


def _ends_of(tokenizer: bytes, config: Mapping[str, object]) -> list[int]:
    """The token that tokenizer_config.json calls the end of a text: many who train a model further name it there
    alone."""
    text = _text_of(config.get("eos_token"))
    return [token.id for token in _added_tokens(tokenizer) if token.content and token.content == text]


def _text_of(token: object) -> object:
    """The text of a token that a config names."""
    return token.get("content") if isinstance(token, Mapping) else token


def _added_tokens(tokenizer: bytes) -> list[_AddedToken]:
    try:
        return msgspec.json.decode(tokenizer, type=_AddedTokens).added_tokens
    except msgspec.DecodeError:
        return []  # who makes a tokenizer of it says what is wrong


def _sampling(path: Path, generation: Mapping[str, Any]) -> dict[str, float]:
    """What generation_config.json says of sampling, whatever it says of `do_sample`, as vLLM takes it."""
    found = {name: generation[name] for name in SAMPLING if generation.get(name) is not None}
    for name, value in found.items():
        least, most = SAMPLING[name]
        kinds, told = (int, "a whole number") if name == "top_k" else (int | float, "a number")
        if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
            wanted = f"expected {told} from {least:g} to {most:g}"
            raise CheckpointError(f"{path}: {name} is {value!r}, {wanted}: mend it, or take it out")
    return found


def _read_optional(path: Path) -> dict[str, Any]:
    """What a file says; nothing if it is not there. Raises CheckpointError for what no message can hold."""
    if not path.exists():
        return {}
    read = read_json(path)
    check_depth(path, read)
    try:
        json.dumps(read, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(
            f"{path}: unreadable: it has half of a character, {error.object[error.start]!r}"
        ) from None
    return read
