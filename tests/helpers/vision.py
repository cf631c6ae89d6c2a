"""transformers' own model and processor for checkpoints that see, and pictures for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from testing.vision_checkpoint import AROUND, IMAGE


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Coarse noise, of which scaling leaves something."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (max(1, height // 7), max(1, width // 5), 3), np.uint8)
    return Image.fromarray(coarse, "RGB").resize((width, height), Image.Resampling.BICUBIC)


def load_model(folder: Path) -> Any:
    """The folder as transformers serves it, in float32."""
    from transformers import AutoModelForImageTextToText
    from transformers.utils import logging

    logging.disable_progress_bar()
    model: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


def load_processor(folder: Path, image_seq_len: int) -> Any:
    """The processor that transformers makes of the files of a folder. (It takes no torchvision.)"""
    from transformers import PreTrainedTokenizerFast
    from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

    make_tokenizer: Any = PreTrainedTokenizerFast
    tokenizer = make_tokenizer(tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|end|>")
    return Idefics3Processor(load_image_processor(folder), tokenizer, image_seq_len)


def load_image_processor(folder: Path) -> Any:
    """Its part that makes tiles of images."""
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    return Idefics3ImageProcessorPil.from_pretrained(folder)


def expected_logprobs(model: Any, processor: Any, text: str, images: Sequence[Image.Image]) -> tuple[list[int], Any]:
    """Tokens of a text with an IMAGE for each image, and the log-probabilities behind each, float32 [tokens, vocab]."""
    inputs = processor(text=text, images=[list(images)] if images else None, return_tensors="pt")
    tokens = inputs["input_ids"][0].tolist()
    pixels = {key: inputs[key] for key in ("pixel_values", "pixel_attention_mask") if key in inputs}
    with torch.inference_mode():
        logits = model(input_ids=inputs["input_ids"], **pixels).logits[0]
    return tokens, logits.log_softmax(-1).numpy()


__all__ = ["AROUND", "IMAGE", "expected_logprobs", "load_image_processor", "load_model", "load_processor", "picture"]
