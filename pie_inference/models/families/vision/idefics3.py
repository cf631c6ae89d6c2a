"""Idefics 3 (Laurençon et al. 2024) and SmolVLM (Marafioti et al. 2025): the tower of SigLIP, whose patches are put
together by fours or more (pixel shuffle) and projected, in front of a Llama."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ....errors import CheckpointError
from ....loading.weights import WeightLoader
from ...config_json import ConfigJson
from ...decoder import Decoder
from ...vision import ImageLayout, VisionConfig
from .. import llama
from . import siglip

ROOT = "model"
LAYOUT = ImageLayout(
    tile="<fake_token_around_image><row_{row}_col_{column}>{image}",
    row_end="\n",
    whole="\n<fake_token_around_image><global-img>{image}<fake_token_around_image>",
    alone="<fake_token_around_image><global-img>{image}<fake_token_around_image>",
)
"""What stands around the vectors of an image (transformers: Idefics3Processor)."""


@dataclass(frozen=True)
class Idefics3Config(llama.LlamaConfig):
    """The configuration of an Idefics 3."""

    tower: siglip.SiglipConfig
    scale_factor: int
    image_token: int

    @property
    def vision(self) -> VisionConfig:
        return VisionConfig(
            tile_size=self.tower.image_size,
            tile_embeds=self.tower.patches // self.scale_factor**2,
            placeholder=self.image_token,
            layout=LAYOUT,
            layers=self.tower.num_layers,
            layer_work=self.tower.patches * self.tower.parameters,
            state=(self.tower.patches, self.tower.hidden_size),
        )


def read(config: ConfigJson) -> Idefics3Config:
    """Reads a config.json with its `text_config` and `vision_config`."""
    text, inner = config.within("text_config"), ConfigJson(config.section("vision_config"))
    if text is config:
        raise CheckpointError("config.json: 'text_config' is missing")
    kind = text.text("model_type", "llama")
    if kind != "llama":
        raise CheckpointError(f"config.json: text_config: model_type {kind!r} is not supported, only llama")
    text.refuse("qk_layer_norms", "use_resampler")
    tower, factor = siglip.read(inner), config.whole("scale_factor", 2)
    if tower.side % factor:
        raise CheckpointError(f"config.json: scale_factor {factor} does not divide {tower.side} patches of a side")
    read = Idefics3Config.read(
        text,
        mlp_bias=text.flag("mlp_bias"),
        tie_embeddings=config.flag("tie_word_embeddings"),
        tower=tower,
        scale_factor=factor,
        image_token=config.whole("image_token_id", 128257),
    )
    if read.image_token >= read.vocab_size:
        raise CheckpointError(f"config.json: image_token_id {read.image_token} is outside of the vocabulary")
    return read


def build(config: Idefics3Config, weights: WeightLoader) -> Decoder:
    """Loads Idefics3ForConditionalGeneration or SmolVLMForConditionalGeneration."""
    decoder = llama.build(config, weights, f"{ROOT}.text_model")
    decoder.vision = Idefics3Vision(config, weights)
    return decoder


class Idefics3Vision:
    """The tower and its connector. Implements `VisionTower`."""

    def __init__(self, config: Idefics3Config, weights: WeightLoader) -> None:
        self._tower = siglip.SiglipTower(config.tower, weights, f"{ROOT}.vision_model")
        self._factor = config.scale_factor
        width = config.tower.hidden_size * self._factor**2
        self._projection = weights.tensor(
            f"{ROOT}.connector.modality_projection.proj.weight", config.hidden_size, width
        )

    def begin(self, tiles: Tensor) -> Tensor:
        return self._tower.begin(tiles)

    def run(self, states: Tensor, begin: int, end: int) -> Tensor:
        return self._tower.run(states, begin, end)

    def finish(self, states: Tensor) -> Tensor:
        return shuffled(self._tower.finish(states), self._factor) @ self._projection.T


def shuffled(patches: Tensor, factor: int) -> Tensor:
    """Patches [N, side * side, size] put together, factor x factor of them in one vector behind each other:
    [N, (side / factor)^2, size * factor^2]."""
    tiles, count, size = patches.shape
    short = int(count**0.5) // factor
    blocks = patches.view(tiles, short, factor, short, factor, size)
    return blocks.permute(0, 1, 3, 2, 4, 5).reshape(tiles, short * short, size * factor**2)
