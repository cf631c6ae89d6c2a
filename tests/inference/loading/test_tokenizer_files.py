"""The dialects in which model folders hold tokenizer, chat template and stop tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pie_control.services.tokenizer import Tokenizer
from pie_inference.errors import CheckpointError
from pie_inference.loading.tokenizer_files import TokenizerFiles, read_tokenizer_files
from testing.checkpoints import make_checkpoint

HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path)


def read(folder: Path) -> TokenizerFiles:
    return read_tokenizer_files(folder, {"eos_token_id": 9}, 273)


def write(folder: Path, name: str, content: object) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.mark.parametrize(
    "files",
    [
        {"chat_template.jinja": "T{{ messages[0].content }}"},
        {"chat_template.json": {"chat_template": "T{{ messages[0].content }}"}},
        {"tokenizer_config.json": {"chat_template": "T{{ messages[0].content }}"}},
        {
            "tokenizer_config.json": {
                "chat_template": [
                    {"name": "tool_use", "template": "no"},
                    {"name": "default", "template": "T{{ messages[0].content }}"},
                ]
            }
        },
        {"chat_template.jinja": "T{{ messages[0].content }}", "tokenizer_config.json": {"chat_template": "no"}},
        {
            "chat_template.jinja": "T{{ messages[0].content }}",
            "additional_chat_templates/tool_use.jinja": "no",
        },
    ],
    ids=["jinja", "json", "config", "named", "the file wins", "several files"],
)
def test_chat_templates(files: dict[str, object], folder: Path) -> None:
    for name, content in files.items():
        write(folder, name, content)
    found = read(folder)
    tokenizer = Tokenizer(found.tokenizer, found.config, 272)
    assert tokenizer.format_chat(json.dumps(HELLO), "", False) == "Thi"
    several = "tool_use" in json.dumps(found.config)
    assert tokenizer.format_chat(json.dumps(HELLO), "[]", False) == ("no" if several else "Thi")


def test_special_tokens_of_an_older_file(folder: Path) -> None:
    write(folder, "special_tokens_map.json", {"bos_token": "<a>", "eos_token": "<b>"})
    write(folder, "tokenizer_config.json", {"eos_token": "<c>"})
    assert read(folder).config == {"bos_token": "<a>", "eos_token": "<c>"}


ADDED = {
    "content": "<|x|>",
    "lstrip": False,
    "rstrip": True,
    "normalized": False,
    "single_word": False,
    "special": True,
}


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("tokenizer_config.json", {"added_tokens_decoder": {"272": ADDED}}, "a"),
        ("added_tokens.json", {"<|x|>": 272}, " a"),
    ],
)
def test_added_tokens_of_the_files_beside_are_those_of_transformers(
    name: str, content: dict[str, Any], text: str, folder: Path
) -> None:
    """A tokenizer.json that was not written anew lacks them, or takes no spaces with them."""
    made = json.loads((folder / "tokenizer.json").read_text())
    write(folder, name, content)
    told = {"eos_token": "<|x|>", **(content if name == "tokenizer_config.json" else {})}
    write(folder, "tokenizer_config.json", told)
    assert_tokens_of(folder, "Hi<|x|> a", f"Hi{text}")
    plain = {"id": 272, **ADDED, "rstrip": False, "special": False}
    write(folder, "tokenizer.json", made | {"added_tokens": [*made["added_tokens"], plain]})
    assert_tokens_of(folder, "Hi<|x|> a", f"Hi{text}")


def assert_tokens_of(folder: Path, text: str, shown: str) -> None:
    from transformers import AutoTokenizer

    found, theirs = read(folder), AutoTokenizer.from_pretrained(folder)
    ours = Tokenizer(found.tokenizer, found.config, 273)
    tokens = theirs(text, add_special_tokens=False).input_ids
    assert ours.encode(text) == tokens
    assert ours.decode(tokens) == theirs.decode(tokens, skip_special_tokens=True) == shown
    assert found.stop_tokens == (9, tokens[2])


def test_no_token_is_added_that_the_model_lacks(folder: Path) -> None:
    write(folder, "tokenizer_config.json", {"added_tokens_decoder": {"273": ADDED}})
    assert read(folder).tokenizer == (folder / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("listed", [7, {"x": ADDED}, {"1": {"content": 7}}], ids=str)
def test_added_tokens_that_are_none(listed: object, folder: Path) -> None:
    write(folder, "tokenizer_config.json", {"added_tokens_decoder": listed})
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: added tokens: .*: correct it there"):
        read(folder)


def test_what_transformers_writes_where_a_tokenizer_has_no_longest_text_is_left_out(folder: Path) -> None:
    write(folder, "tokenizer_config.json", {"model_max_length": 10**30, "own": {"most": 10**30, "list": [1, 10**30]}})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(read(folder).config)) == {"own": {"list": [1]}}


@pytest.mark.parametrize(
    ("generation", "tokens"), [({}, (9,)), ({"eos_token_id": 4}, (4,)), ({"eos_token_id": [4, 5]}, (4, 5))]
)
def test_stop_tokens(generation: dict[str, object], tokens: tuple[int, ...], folder: Path) -> None:
    write(folder, "generation_config.json", generation)
    write(folder, "tokenizer_config.json", {})
    assert read(folder).stop_tokens == tokens


@pytest.mark.parametrize("named", ["<|im_end|>", {"content": "<|im_end|>", "special": True}], ids=["text", "object"])
def test_a_text_ends_where_the_tokenizer_says_too(named: object, folder: Path) -> None:
    """Those who train a model for chats often say it there alone."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": 271, "content": "<|im_end|>"})
    write(folder, "tokenizer.json", tokenizer)
    write(folder, "tokenizer_config.json", {"eos_token": named})
    assert read(folder).stop_tokens == (9, 271)
    write(folder, "generation_config.json", {"eos_token_id": [271, 4]})
    assert read(folder).stop_tokens == (271, 4)
    write(folder, "tokenizer_config.json", {"eos_token": "no such token"})
    assert read(folder).stop_tokens == (271, 4)


@pytest.mark.parametrize(
    "config",
    [
        {"text_config": {"eos_token_id": [7, 8]}},
        {"eos_token_id": 9, "text_config": {"eos_token_id": 7}},
        {"eos_token_id": None, "text_config": {"eos_token_id": 7}},
        {"text_config": None},
    ],
    ids=str,
)
def test_stop_tokens_of_a_model_with_images_are_those_of_transformers(config: dict[str, Any], folder: Path) -> None:
    from transformers import GenerationConfig

    write(folder, "tokenizer_config.json", {})
    told = read_tokenizer_files(folder, config, 273).stop_tokens
    expected = GenerationConfig.from_model_config(config).eos_token_id
    assert told == tuple(expected if isinstance(expected, list) else [] if expected is None else [expected])


def test_how_its_authors_sample(folder: Path) -> None:
    assert read(folder).sampling == {}
    advised = {"temperature": 0.6, "top_k": 20, "top_p": 1, "repetition_penalty": 1.05}
    write(folder, "generation_config.json", {**advised, "min_p": None, "do_sample": False, "max_new_tokens": 7})
    assert read(folder).sampling == advised


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("temperature", "hot", "a number from 0 to 100"),
        ("temperature", True, "a number from 0 to 100"),
        ("top_k", 2.5, "a whole number from 0 to"),
        ("top_p", 0, "a number from 1e-06 to 1"),
        ("min_p", float("nan"), "a number from 0 to 1"),
        ("repetition_penalty", -1, "a number from 0.001 to 1000"),
    ],
)
def test_advice_that_no_sampler_takes_is_refused(name: str, value: object, expected: str, folder: Path) -> None:
    write(folder, "generation_config.json", {name: value})
    with pytest.raises(CheckpointError, match=rf"generation_config.json: {name} is .*, expected {expected}"):
        read(folder)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"tokenizer.model": "x"},
            r"tokenizer.json: unreadable .* slow tokenizer; convert them with",
        ),
        ({"tekken.json": "x"}, "slow tokenizer; convert them with"),
        ({"README.md": "x"}, "only fast tokenizers are supported, .*: get it from where the weights are from"),
    ],
)
def test_folders_without_a_fast_tokenizer_are_refused(files: dict[str, str], message: str, folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    for name, content in files.items():
        write(folder, name, content)
    with pytest.raises(CheckpointError, match=message):
        read(folder)


def test_wrong_files_are_named(folder: Path) -> None:
    write(folder, "generation_config.json", {"eos_token_id": "</s>"})
    with pytest.raises(CheckpointError, match="eos_token_id '</s>' is neither"):
        read(folder)
    (folder / "generation_config.json").unlink()
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match=r"chat_template.jinja: unreadable"):
        read(folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer_config.json", {"chat_template": ["x"]}, "chat_template in tokenizer_config.json .* must be a text"),
        ("tokenizer_config.json", {"chat_template": 5}, "chat_template in tokenizer_config.json .* must be a text"),
        ("tokenizer_config.json", {"x": "\ud800"}, r"tokenizer_config.json: unreadable: it has half of a character"),
        ("tokenizer_config.json", '{"x":' + "[" * 500 + "]" * 500 + "}", "tokenizer_config.json: .* nested too deeply"),
        ("generation_config.json", {"eos_token_id": 10**30}, "eos_token_id 10*0 is neither"),
    ],
    ids=["templates", "number", "surrogate", "deep", "huge"],
)
def test_what_no_message_can_hold_is_refused_by_its_file(
    name: str, content: object, message: str, folder: Path
) -> None:
    write(folder, name, content)
    with pytest.raises(CheckpointError, match=message):
        read(folder)
