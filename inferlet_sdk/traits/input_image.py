"""InputImage: images to embeds (paper, section 4.2). `Context.fill_image` does all of this."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from inferlet_sdk import bindings
from inferlet_sdk.addresses import Embeds
from inferlet_sdk.errors import call
from inferlet_sdk.futures import HostFuture
from inferlet_sdk.traits.arguments import HasQueue, embed_ranges, numbers, queue_number, whole

__all__ = [
    "LoadedImage",
    "drop_image",
    "embed_img",
    "load_image",
    "num_embs_needed",
]


class LoadedImage(NamedTuple):
    """An image as one model sees it."""

    image: int
    """Its handle."""
    tokens: Sequence[int]
    """What stands for it in a prompt: the text that the model wants around images, and `ModelInfo.image_token` for each
    embed that `embed_img` fills."""


def num_embs_needed(queue: int | HasQueue, width: int, height: int) -> int:
    """Embeds that an image of this size in pixels needs, without those of the text around it."""
    arguments = queue_number(queue), whole(width, "width", 1), whole(height, "height", 1)
    return int(call(bindings.input_image.num_embs_needed, *arguments))


def load_image(queue: int | HasQueue, blob: int) -> HostFuture[LoadedImage]:
    """Decodes a blob, a PNG or a JPEG, and prepares it for the model of a queue. The future raises InvalidArgument if
    the blob is no such image, is broken or too large."""
    handle = whole(blob, "blob", wanted="a handle of a blob, from `open_blob`")
    return HostFuture(call(bindings.input_image.load_image, queue_number(queue), handle), await_image)


def await_image(future: int) -> LoadedImage:
    """The value of the future of an image."""
    return LoadedImage(*bindings.input_image.await_image(future))


def _image(image: object) -> int:
    return whole(image, "image", wanted="the handle of an image: `image` of what `load_image` gives")


def drop_image(image: int) -> None:
    """Frees an image. Commands that were issued still have what they need of it."""
    call(bindings.core.drop, _image(image))


def embed_img(
    queue: int | HasQueue, image: int, positions: Iterable[int], embeds: Embeds | Iterable[int], first: int = 0
) -> None:
    """Fills embeds from what the model sees in an image, from its embed `first` on; as many as there are positions."""
    call(
        bindings.input_image.embed_img,
        queue_number(queue),
        _image(image),
        whole(first, "first"),
        numbers(positions, "positions", "a position"),
        embed_ranges(embeds, "embeds"),
    )
