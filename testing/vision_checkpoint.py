"""SmolVLM checkpoints with random weights in the format of Hugging Face, with a byte tokenizer: small models that see.

`python -m testing.vision_checkpoint FOLDER` writes one, to try images with. It answers nonsense, but each
image another one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from pie_inference.testing import byte_tokenizer
from testing.checkpoints import Shape, random_weight, tensor_shapes

IMAGE, AROUND, WHOLE = "<image>", "<fake_token_around_image>", "<global-img>"
MOST_ROWS = 4
ADDED_TOKENS = (
    *(IMAGE, AROUND, WHOLE),
    *(f"<row_{row}_col_{column}>" for row in range(1, MOST_ROWS + 1) for column in range(1, MOST_ROWS + 1)),
)
IMAGE_TOKEN = byte_tokenizer.VOCAB_SIZE
VOCAB = byte_tokenizer.VOCAB_SIZE + len(ADDED_TOKENS)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|turn|>{{ message['role'] }}{{ ':' }}"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% elif part['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant:{% endif %}"
)
"""Like SmolVLM's, it takes the content of a message as a list of parts."""


def make_vision_checkpoint(
    folder: Path,
    *,
    image_size: int = 32,
    patch_size: int = 8,
    scale_factor: int = 2,
    longest_edge: int = 64,
    split: bool = True,
    max_context: int = 2048,
    architecture: str = "SmolVLMForConditionalGeneration",
    seed: int = 0,
) -> Path:
    """Writes a checkpoint into `folder` and returns it. Sizes are in pixels."""
    folder.mkdir(parents=True, exist_ok=True)
    text: dict[str, object] = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": VOCAB,
        "max_position_embeddings": max_context,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }
    vision = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": image_size,
        "patch_size": patch_size,
    }
    kind = "smolvlm" if architecture.startswith("SmolVLM") else "idefics3"
    config = {
        "architectures": [architecture],
        "model_type": kind,
        "text_config": text,
        "vision_config": {**vision, "model_type": f"{kind}_vision"},
        "scale_factor": scale_factor,
        "image_token_id": IMAGE_TOKEN,
        "tie_word_embeddings": False,
        "eos_token_id": byte_tokenizer.END,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(processor_config(image_size, longest_edge, split)))
    (folder / "tokenizer.json").write_bytes(byte_tokenizer.tokenizer_json(VOCAB, ADDED_TOKENS))
    tokenizer = {**byte_tokenizer.tokenizer_config(), "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    generator = torch.Generator().manual_seed(seed)
    shapes = _text_shapes(text) | _vision_shapes(vision, scale_factor, 64)
    tensors = {name: random_weight(name, shape, generator) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def processor_config(image_size: int, longest_edge: int, split: bool) -> dict[str, object]:
    """The content of preprocessor_config.json."""
    return {
        "image_processor_type": "Idefics3ImageProcessor",
        "do_convert_rgb": True,
        "do_image_splitting": split,
        "do_normalize": True,
        "do_pad": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.45, 0.4],
        "image_std": [0.5, 0.3, 0.25],
        "max_image_size": {"longest_edge": image_size},
        "resample": 1,
        "rescale_factor": 1 / 255,
        "size": {"longest_edge": longest_edge},
    }


def _text_shapes(config: dict[str, object]) -> dict[str, Shape]:
    shapes = tensor_shapes(config)
    return {name.replace("model.", "model.text_model.", 1): shape for name, shape in shapes.items()}


def _vision_shapes(config: dict[str, int], scale_factor: int, text_size: int) -> dict[str, Shape]:
    size, inner, patch = config["hidden_size"], config["intermediate_size"], config["patch_size"]
    root = "model.vision_model"
    patches = (config["image_size"] // patch) ** 2
    affine: dict[str, Shape] = {f"{root}.embeddings.patch_embedding": (size, 3, patch, patch)}
    affine[f"{root}.post_layernorm"] = (size,)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"{root}.encoder.layers.{layer}"
        affine |= {f"{prefix}.{norm}": (size,) for norm in ("layer_norm1", "layer_norm2")}
        affine |= {f"{prefix}.self_attn.{name}_proj": (size, size) for name in ("q", "k", "v", "out")}
        affine |= {f"{prefix}.mlp.fc1": (inner, size), f"{prefix}.mlp.fc2": (size, inner)}
    shapes: dict[str, Shape] = {f"{name}.weight": shape for name, shape in affine.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in affine.items()}
    shapes[f"{root}.embeddings.position_embedding.weight"] = (patches, size)
    shapes["model.connector.modality_projection.proj.weight"] = (text_size, size * scale_factor**2)
    return shapes


if __name__ == "__main__":
    print(make_vision_checkpoint(Path(sys.argv[1])))
