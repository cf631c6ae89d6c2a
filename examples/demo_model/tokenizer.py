"""The demo model's tokenizer: byte-level BPE with single digits, trained on the generated data.

It is saved as `tokenizer.json` and `tokenizer_config.json` (with the chat template), as Hugging Face does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
SPECIAL = (BEGIN, END, PAD, "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
VOCABULARY = 2048
MAX_LENGTH = 2048

CHAT_TEMPLATE = (
    "{{ '<|begin|>' }}{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def role_token(role: str) -> str:
    return f"<|{role}|>"


def token_id(token: str) -> int:
    """The id of a special token; `train_tokenizer` gives them the first ids in their order."""
    return SPECIAL.index(token)


def train_tokenizer(texts: Iterator[str]) -> Tokenizer:
    """A tokenizer with `VOCABULARY` tokens: the special ones first, then the 256 bytes, then the merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A $B", special_tokens=[(BEGIN, token_id(BEGIN))]
    )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": PAD,
        "additional_special_tokens": list(SPECIAL[3:]),
        "model_max_length": MAX_LENGTH,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
