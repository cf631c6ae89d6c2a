"""input-image.wit, but for `embed-img`, which is a command: blobs to images, decoded in a process of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from pie_inference.protocol import Vision

from ...calls.input_image.image import Image
from ...errors import CallError, InvalidArgument
from ...images.tiling import BadImage, check_size, text_of, tiling_of
from ...inferlets.blobs import Blob, LoadedImage
from ...services.tokenizer import Tokenizer
from ..guest import Guest
from ..suspending import suspending, when_done

VECTORS = "\0"
"""Stands for the vectors of a tile where a text is made; no layout has it."""


def num_embs_needed(guest: Guest, queue: int, width: int, height: int) -> int:
    vision = _vision(guest, queue)
    try:
        check_size(width, height)
    except BadImage as error:
        raise InvalidArgument(str(error)) from None
    return tiling_of(vision, width, height).tiles * vision.tile_embeds


def load_image(guest: Guest, queue: int, blob: int) -> int:
    one, vision, blobs = guest.handle(blob, Blob), _vision(guest, queue), guest.inferlet.blobs
    tokenizer = guest.model_of(queue).tokenizer
    future = guest.futures.new()
    blobs.hold(one)  # it counts until it is read, also if the program closes it before
    held = [one]

    def release(_: object = None) -> None:
        if held:
            blobs.close(held.pop())

    work = asyncio.get_running_loop().create_task(_load(guest, tokenizer, vision, one.data, future, release))
    work.add_done_callback(release)  # also if it is ended before it has begun

    def stop() -> None:
        work.cancel()

    guest.inferlet.waits.begin(future, stop, "an image to be read")
    return future


async def _load(
    guest: Guest,
    tokenizer: Tokenizer,
    vision: Vision,
    data: bytes | bytearray,
    future: int,
    release: Callable[[], None],
) -> None:
    inferlet = guest.inferlet
    value: LoadedImage | CallError
    try:
        tenant = inferlet.launched.standing.tenant.name
        charge = inferlet.processor_time.charge
        read = await guest.reach.images.read(tenant, inferlet.id, data, vision, charge)
        image = Image(vision, read.tiles)
        inferlet.blobs.reserve(image.nbytes)
        tokens = _image_tokens(tokenizer, vision, read.width, read.height)
        value = LoadedImage(image, tokens, inferlet.blobs)
    except BadImage as error:
        value = InvalidArgument(str(error))
    except CallError as error:
        value = error
    release()
    inferlet.waits.conclude(future, value)


def _image_tokens(tokenizer: Tokenizer, vision: Vision, width: int, height: int) -> list[int]:
    """What stands for an image of this size among tokens: the model's placeholder for each vector, and the text around
    them."""
    before, *others = text_of(vision, tiling_of(vision, width, height), VECTORS).split(VECTORS)
    tokens = tokenizer.encode(before)
    for piece in others:
        tokens += [vision.placeholder] * vision.tile_embeds + tokenizer.encode(piece)
    return tokens


def _take_image(guest: Guest, future: int) -> tuple[int, Sequence[int]]:
    loaded: LoadedImage = guest.futures.take(future, LoadedImage)
    return guest.add_handle(loaded.image, loaded.not_taken), loaded.tokens


@suspending
def await_image(guest: Guest, future: int) -> Any:
    return when_done(guest, future, lambda: _take_image(guest, future))


def _vision(guest: Guest, queue: int) -> Vision:
    vision = guest.model_of(queue).description.vision
    assert vision is not None, "the trait was checked"
    return vision
