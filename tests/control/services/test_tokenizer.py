"""Tokens and text, in streams; chat templates against transformers, and what hostile input meets."""

from __future__ import annotations

import base64
import json
import random
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models

from pie_control.calls.tokens import longest_text
from pie_control.errors import ConfigError, InvalidArgument, TooLong, Unsupported
from pie_control.services import tokenizer as tokenizer_module
from pie_control.services.tokenizer import Detokenizer, Tokenizer
from pie_inference.testing import byte_tokenizer
from tests.helpers.tree import DEMO_MODEL

TEXTS = ["", "plain text", "Grüße, 世界!", "🎉👩‍👩‍👧 ok", " leading", "tabs\tand\n\nlines", "मराठी العربية"]
MESSAGES = [
    {"role": "system", "content": "Be brief. <ü>"},
    {"role": "user", "content": 'Hello & "quotes"'},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "Again"},
]
TOOLS = [{"type": "function", "function": {"name": "größe", "parameters": {"b": [1, 2], "a": None}}}]

CHATML = """{%- if tools %}{{- '<|im_start|>system\\n# Tools\\n' }}{% for tool in tools %}
{{- "\\n" }}{{ tool | tojson }}{% endfor %}{{- '<|im_end|>\\n' }}{% endif %}
{% for message in messages %}
    {% if loop.first and message.role != 'system' %}{{ '<|im_start|>system\\nYou are helpful<|im_end|>\\n' }}{% endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
LLAMA = """{{- bos_token }}
{%- if strftime_now is defined %}{%- set date = strftime_now("%Y") %}{%- else %}{%- set date = "2024" %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content']|trim %}
{%- set messages = messages[1:] %}{%- else %}{%- set system = "" %}{%- endif %}
{{- "Today: " + date + "\\n" + system }}{%- if tools is not none %}{{- tools[0] | tojson(indent=4) }}{%- endif %}
{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{%- endif %}
{%- if message.role == 'tool' %}{% continue %}{% endif %}
{{- '<|' + message['role'] + '|>' + message['content'] + eos_token }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"""
TRAINED = """{% for message in messages %}{% if message.role == 'assistant' %}{% generation %}{{ message.content }}
{% endgeneration %}{% else %}{{ message.content }}
{% endif %}{% endfor %}{{ messages | tojson(sort_keys=true, ensure_ascii=true, separators=(',', ':')) }}"""


def bytewise(template: str | None = None, data: bytes | None = None) -> Tokenizer:
    config: dict[str, Any] = byte_tokenizer.tokenizer_config()
    if template is not None:
        config["chat_template"] = template
    return Tokenizer(data or byte_tokenizer.tokenizer_json(), config, byte_tokenizer.VOCAB_SIZE)


def demo() -> Tokenizer:
    config = json.loads((DEMO_MODEL / "tokenizer_config.json").read_text())
    vocab_size = json.loads((DEMO_MODEL / "config.json").read_text())["vocab_size"]
    return Tokenizer((DEMO_MODEL / "tokenizer.json").read_bytes(), config, vocab_size)


def sentencepiece() -> Tokenizer:
    """As Llama 2 and Gemma write it: words with a mark for the space before, bytes for what has no word."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁Hello", "▁world", "é", "!"]
    inner = tokenizers.Tokenizer(
        models.BPE({word: i for i, word in enumerate(words)}, [], unk_token="<unk>", byte_fallback=True)
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    inner.decoder = decoders.Sequence(steps)
    inner.add_special_tokens(["<unk>"])
    return Tokenizer(inner.to_str().encode(), {}, len(words))


# ---- tokens and text ----


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_encoding_and_decoding(text: str) -> None:
    for one in (bytewise(), demo()):
        assert one.decode(one.encode(text)) == text


def test_special_tokens_are_recognized_and_not_printed() -> None:
    one = bytewise()
    tokens = one.encode("a<|end|>b")
    assert tokens == [ord("a"), byte_tokenizer.END, ord("b")]
    assert one.decode(tokens) == "ab"
    assert Detokenizer(one).push(tokens) == "ab"


@pytest.mark.parametrize("text", TEXTS)
def test_a_stream_gives_the_same_text_in_whole_characters(text: str) -> None:
    for one in (bytewise(), demo()):
        stream = Detokenizer(one)
        pieces = [stream.push([token]) for token in one.encode(text)]
        assert "".join(pieces) == text
        assert not any("�" in piece for piece in pieces)


def test_a_stream_of_random_bytes_is_what_decoding_gives() -> None:
    one, source = bytewise(), random.Random(7)
    for _ in range(200):
        tokens = [source.randrange(256) for _ in range(40)] + [ord("x")]
        stream = Detokenizer(one)
        assert "".join(stream.push([token]) for token in tokens) == one.decode(tokens)


def test_a_stream_works_with_marks_for_spaces_and_byte_fallback() -> None:
    one = sentencepiece()
    snowman = [1 + byte for byte in "☃".encode()]
    tokens = [258, 259, *snowman, 258, 260, 261]
    stream = Detokenizer(one)
    pieces = [stream.push([token]) for token in tokens]
    assert "".join(pieces) == " " + one.decode(tokens) == " Hello world☃ Helloé!"
    assert pieces[2:5] == ["", "", "☃"]


def test_a_stream_goes_on_behind_a_text_and_behind_special_tokens() -> None:
    """Decoders of such tokenizers take away the space with which a text begins; what is generated begins none."""
    one = sentencepiece()
    prompt, written = [258, 261], [259, 0, 259, 257, 260]
    assert one.decode([0]) == ""
    whole = one.decode([*prompt, *written])
    assert "".join(map(Detokenizer(one).push, ([token] for token in written))) == whole.removeprefix(one.decode(prompt))


def test_a_stream_takes_time_in_proportion_to_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invalid bytes never complete a character: what waits for one must not grow."""
    sizes: list[int] = []
    one = sentencepiece()
    decode = one.decode

    def counting(tokens: Sequence[int]) -> str:
        sizes.append(len(tokens))
        return decode(tokens)

    monkeypatch.setattr(one, "decode", counting)
    Detokenizer(one).push([1 + 0xFF] * 1000)
    assert max(sizes) <= 9
    assert "�" in Detokenizer(bytewise()).push([0xFF] * 100_000)


def test_the_vocabulary_is_the_bytes_of_every_token() -> None:
    one = demo()
    lines = [base64.b64decode(line) for line in one.vocabulary.split("\n")]
    for text in TEXTS:
        assert b"".join(lines[token] for token in one.encode(text)) == text.encode()
    assert bytewise().vocabulary.split("\n")[:256] == [base64.b64encode(bytes([b])).decode() for b in range(256)]
    assert base64.b64decode(bytewise().vocabulary.split("\n")[byte_tokenizer.END]) == b"<|end|>"


def test_the_vocabulary_of_a_tokenizer_with_byte_fallback() -> None:
    lines = [base64.b64decode(line) for line in sentencepiece().vocabulary.split("\n")]
    assert lines[1 + 0xE4] == b"\xe4"
    assert lines[258:261] == [b" Hello", b" world", "é".encode()]


def test_an_added_token_is_its_own_text() -> None:
    added = json.loads(byte_tokenizer.tokenizer_json())
    added["added_tokens"][2]["content"] = "é à"
    added["added_tokens"][2]["special"] = False
    one = bytewise(data=json.dumps(added).encode())
    assert base64.b64decode(one.vocabulary.split("\n")[byte_tokenizer.TURN]) == "é à".encode()
    assert Detokenizer(one).push([byte_tokenizer.TURN]) == "é à"


@pytest.mark.parametrize("tokens", [[259], [0, 2**31], [2**32 - 1]])
def test_tokens_outside_the_vocabulary_are_refused(tokens: list[int]) -> None:
    one = bytewise()
    for call in (one.decode, Detokenizer(one).push, lambda tokens: Detokenizer(one).push_one(tokens[-1])):
        with pytest.raises(InvalidArgument, match="not in the vocabulary of 259"):
            call(tokens)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts have 100 tokens at most."""
    monkeypatch.setattr(tokenizer_module, "longest_text", lambda _: 100)


@pytest.mark.usefixtures("short")
def test_what_one_call_may_take_is_bounded() -> None:
    one = bytewise()
    for call in (lambda: one.encode("x" * 801), lambda: one.format_chat("[" + " " * 800 + "]", "", True)):
        with pytest.raises(TooLong, match="characters is longer than 800"):
            call()
    with pytest.raises(InvalidArgument, match="101 tokens are more than 100"):
        Detokenizer(one).push([1] * 101)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("special_tokens", [True, False])
def test_a_text_of_too_many_tokens_is_refused(special_tokens: bool) -> None:
    tokenizer = bytewise()
    assert len(tokenizer.encode("x" * 100, special_tokens)) == 100
    with pytest.raises(TooLong, match="the text has 101 tokens, more than 100"):
        tokenizer.encode("x" * 101, special_tokens)


def test_the_longest_text_follows_the_context_of_the_model() -> None:
    data, text = byte_tokenizer.tokenizer_json(), "x" * 140_000
    assert len(Tokenizer(data, {}, byte_tokenizer.VOCAB_SIZE, 140_000).encode(text)) == 140_000
    for context in (4096, 131_072):
        with pytest.raises(TooLong, match="the text has 140000 tokens, more than 131072"):
            Tokenizer(data, {}, byte_tokenizer.VOCAB_SIZE, context).encode(text)
    assert [longest_text(context) for context in (1, 200_000, 10_000_000)] == [131_072, 200_000, 1_048_576]


def test_a_broken_tokenizer_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        Tokenizer(b"{}", {}, 10)


# ---- chat templates ----


def test_the_demo_model_formats_as_transformers_does() -> None:
    transformers = pytest.importorskip("transformers")
    one = demo()
    oracle = transformers.AutoTokenizer.from_pretrained(str(DEMO_MODEL))
    chat = [message for message in MESSAGES if message["role"] != "system"]
    for prompt in (True, False):
        expected = oracle.apply_chat_template(chat, tokenize=False, add_generation_prompt=prompt)
        assert one.format_chat(json.dumps(chat), "", prompt) == expected


@pytest.mark.parametrize("template", [CHATML, LLAMA, TRAINED], ids=["chatml", "llama", "trained"])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "tools"])
@pytest.mark.parametrize("prompt", [True, False])
def test_templates_render_as_transformers_does(template: str, tools: Any, prompt: bool) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    special = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    (expected,), _ = utils.render_jinja_template(
        [MESSAGES], tools=tools, chat_template=template, add_generation_prompt=prompt, **special
    )
    given = json.dumps(tools) if tools else ""
    assert bytewise(template).format_chat(json.dumps(MESSAGES), given, prompt) == expected


def test_a_template_may_refuse() -> None:
    with pytest.raises(InvalidArgument, match="roles must alternate"):
        bytewise(LLAMA).format_chat(json.dumps([MESSAGES[2]]), "", True)


def test_the_default_of_several_templates_is_used() -> None:
    config = {"chat_template": [{"name": "rag", "template": "no"}, {"name": "default", "template": "yes"}]}
    one = Tokenizer(byte_tokenizer.tokenizer_json(), config, byte_tokenizer.VOCAB_SIZE)
    assert one.format_chat("[]", "", False) == "yes"
    assert one.format_chat("[]", "[]", False) == "yes"


def test_chats_with_tools_have_a_template_of_their_own() -> None:
    config = {"chat_template": [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "yes"}]}
    one = Tokenizer(byte_tokenizer.tokenizer_json(), config, byte_tokenizer.VOCAB_SIZE)
    assert [one.format_chat("[]", tools, False) for tools in ("", "[]")] == ["yes", "tools"]
    assert one.encode_chat("[]", "[]", False) == one.encode("tools")


def test_templates_know_each_special_token_that_is_named_and_that_there_are_no_documents() -> None:
    config = {
        "sep_token": "<s>",
        "image_token": {"content": "<i>"},
        "extra_special_tokens": {"boi_token": "<b>"},
        "add_bos_token": True,
        "chat_template": "{{ sep_token }}{{ image_token }}{{ boi_token }}{{ documents is none }}{{ add_bos_token }}",
    }
    one = Tokenizer(byte_tokenizer.tokenizer_json(), config, byte_tokenizer.VOCAB_SIZE)
    assert one.format_chat("[]", "", False) == "<s><i><b>True"


def test_a_token_outside_of_the_alphabet_of_bytes_is_its_own_text() -> None:
    words = {"type": "BPE", "vocab": {"a": 0, "你好": 1, "Ġb c": 2}, "merges": []}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    data = {"version": "1.0", "added_tokens": [], "pre_tokenizer": level, "decoder": level, "model": words}
    one = Tokenizer(json.dumps(data).encode(), {}, 3)
    assert Detokenizer(one).push([0, 1, 2]) == one.decode([0, 1, 2]) == "a你好Ġb c"


@pytest.mark.parametrize("more", [[], [{"type": "Fuse"}]], ids=["alone", "fused"])
def test_bytes_of_tokens_are_known_where_the_decoder_is_a_sequence(more: list[Any]) -> None:
    data = json.loads(byte_tokenizer.tokenizer_json())
    plain = Tokenizer(json.dumps(data).encode(), {}, byte_tokenizer.VOCAB_SIZE)
    data["decoder"] = {"type": "Sequence", "decoders": [data["decoder"], *more]}
    one = Tokenizer(json.dumps(data).encode(), {}, byte_tokenizer.VOCAB_SIZE)
    assert one.vocabulary == plain.vocabulary
    tokens = one.encode("Grüße, 你好")
    assert Detokenizer(one).push(tokens) == one.decode(tokens) == "Grüße, 你好"


def test_a_model_without_a_template_says_so() -> None:
    one = Tokenizer(byte_tokenizer.tokenizer_json(), {}, byte_tokenizer.VOCAB_SIZE)
    assert not one.has_chat_template
    with pytest.raises(Unsupported, match="write the prompt yourself"):
        one.format_chat("[]", "", True)


def test_tokens_around_a_text_for_the_model_are_those_of_the_tokenizer() -> None:
    data = json.loads(byte_tokenizer.tokenizer_json())
    assert Tokenizer(json.dumps(data).encode(), {}, byte_tokenizer.VOCAB_SIZE).frame == ([], [])
    special = {
        name: {"id": name, "ids": [token], "tokens": [name]} for name, token in (("<|begin|>", 5), ("<|end|>", 6))
    }
    single = [
        {"SpecialToken": {"id": "<|begin|>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "<|end|>", "type_id": 0}},
    ]
    data["post_processor"] = {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": special}
    data["post_processor"]["pair"] = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
    assert Tokenizer(json.dumps(data).encode(), {}, byte_tokenizer.VOCAB_SIZE).frame == ([5], [6])


@pytest.mark.parametrize(
    "messages",
    ["", "{", "{}", "7", "null", "[1]", "[null]", '[{"role": 5}]', "[" * 50_000],
)
def test_messages_that_are_none_are_refused(messages: str) -> None:
    for template in (CHATML, LLAMA):
        with pytest.raises(InvalidArgument):
            bytewise(template).format_chat(messages, "", True)


@pytest.mark.parametrize(
    "template",
    ["{{ ().__class__.__bases__[0].__subclasses__() }}", "{{ messages.append(1) }}", "{{ 1 // 0 }}", "{% if %}"],
)
def test_a_template_has_no_way_out(template: str) -> None:
    with pytest.raises(InvalidArgument, match="the chat template refused"):
        bytewise(template).format_chat("[]", "", True)


@pytest.mark.parametrize("special_tokens", [True, False])
def test_tokenizing_long_texts_lets_other_threads_run(special_tokens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps the GIL if the library is called in the usual way: then the main thread gets two turns or three."""
    monkeypatch.setattr(tokenizer_module, "longest_text", lambda _: 1 << 30)
    one, turns = demo(), 0
    one.encode("<|end|>", special_tokens)  # makes what the first call needs
    thread = threading.Thread(target=lambda: one.encode("🎉<|end|>" * 50_000, special_tokens))
    thread.start()
    while thread.is_alive():
        time.sleep(0.001)
        turns += 1
    assert turns > 20
