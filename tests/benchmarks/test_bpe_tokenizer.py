"""The tokenizer of the random model with a large vocabulary is one."""

from __future__ import annotations

import json

from tokenizers import Tokenizer

from benchmarks.support.models.bpe_tokenizer import bpe_tokenizer
from pie_inference.testing import byte_tokenizer

SIZE = 4000


def test_every_token_is_merged_from_others_and_always_the_same() -> None:
    made = bpe_tokenizer(SIZE)
    assert made == bpe_tokenizer(SIZE)
    vocabulary = made["model"]["vocab"]
    special = {one["id"] for one in made["added_tokens"]}
    assert sorted([*vocabulary.values(), *special]) == list(range(SIZE))
    assert len(made["model"]["merges"]) == SIZE - byte_tokenizer.VOCAB_SIZE
    assert all({left, right, left + right} <= vocabulary.keys() for left, right in made["model"]["merges"])


def test_texts_come_back_and_json_takes_few_tokens() -> None:
    tokenizer = Tokenizer.from_str(json.dumps(bpe_tokenizer(SIZE)))
    text = json.dumps([{"name": "Zoë", "age": 123, "likes": ["the sea"]}], ensure_ascii=False)
    tokens = tokenizer.encode(text).ids
    assert tokenizer.decode(tokens) == text
    assert {'Ġ"', '":', "123"} <= set(map(tokenizer.id_to_token, tokens))
