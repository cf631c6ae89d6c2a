"""Images from a client to a model, through the sandbox: on the fake model, which tells apart whatever a model would."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.control.images.test_prepare import bomb, saved
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import run, started
from tests.helpers.tiers import corpus
from tests.helpers.vision import picture

IMPORTS = "import asyncio\nfrom inferlet_sdk import *\nfrom inferlet_sdk.traits import *\n"
WIDE, TALL = saved(picture(64, 40)), saved(picture(20, 90, 3), "JPEG")
"""Of two rows of two tiles, or less, and one more each."""


def result_of(
    cache: Path, source: str, blobs: Mapping[str, bytes], model: FakeModel | None = None, **options: Any
) -> Any:
    async def main() -> Any:
        async with started(cache, InProcessClient(model or FakeModel()), **options) as server:
            return await asyncio.wait_for(run(server, IMPORTS + source, None, blobs), HANG_SECONDS)

    return asyncio.run(main())


SEEN = """
async def next_token(queue, image, cut):
    \"\"\"After the vectors of an image, which are embedded in pieces.\"\"\"
    count = image.tokens.count(get_model_info(args_model).image_token)
    kv, embeds = alloc_kvpage(queue, 4), alloc_emb(queue, count + 1)
    for first in range(0, count, cut):
        last = min(first + cut, count)
        embed_img(queue, image.image, range(first, last), embeds[first:last], first)
    forward(queue, kv, embeds[:count], kv, embeds[count:])
    dist = await get_next_dist(queue, embeds[count])
    dealloc_emb(queue, embeds)
    dealloc_kvpage(queue, kv)
    return dist.max_index()

async def main(args):
    global args_model
    args_model = args.model
    queue = create_queue(args.model)
    found = []
    for name in blob_names():
        image = await load_image(queue, open_blob(name))
        tokens = [await next_token(queue, image, cut) for cut in (1000, 3, 2)]
        found.append([image.tokens, tokens])
        drop_image(image.image)
    return found
"""


@pytest.mark.parametrize("hosts", corpus([1, 0], lambda _: "any"))
def test_a_model_sees_the_images_of_the_client(guest_cache: Path, hosts: int) -> None:
    blobs = {"wide": WIDE, "tall": TALL, "again": WIDE, "one": saved(picture(7, 7))}
    results = dict(zip(blobs, result_of(guest_cache, SEEN, blobs, hosts=hosts), strict=True))
    for _, tokens in results.values():
        assert len(set(tokens)) == 1, "it does not matter in how many pieces an image is embedded"
    assert results["wide"] == results["again"]
    assert results["wide"][1] != results["tall"][1]
    see = [255] * 3
    assert results["wide"][0] == [
        *b"[1.1", *see, *b"[1.2", *see, *b"\n[2.1", *see, *b"[2.2", *see, *b"\n]", *see, *b"."
    ]  # fmt: skip
    assert results["one"][0].count(255) == 15


BLOBS = """
async def main(args):
    data = []
    for name in blob_names():
        blob = open_blob(name)
        parts = read_blob(blob, 3, 4).hex(), read_blob(blob, 10**6).hex()
        data.append([name, blob_size(blob), len(read_blob(blob)), *parts])
        close_blob(blob)
    after, errors = blob_names(), []
    for call in (lambda: open_blob("small"), lambda: close_blob(blob), lambda: blob_size(77), lambda: open_blob(7)):
        try:
            call()
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
    return [data, after, errors]
"""


def test_blobs_are_read_in_pieces_and_gone_with_their_last_handle(guest_cache: Path) -> None:
    large = bytes(range(256)) * 2000
    data, after, errors = result_of(guest_cache, BLOBS, {"small": b"abcdefgh", "large": large})
    assert data == [["small", 8, 8, b"defg".hex(), ""], ["large", 512000, 512000, "03040506", ""]]
    assert after == []
    assert errors[0].startswith("NotFound: there is no blob 'small'")
    assert errors[1].startswith("NotFound: there is no handle")
    assert errors[3].startswith("TypeError")


ERRORS = """
async def said(work):
    try:
        result = work()
        if hasattr(result, "__await__"):
            result = await result
    except (PieError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"

async def main(args):
    queue = create_queue(args.model)
    errors = {name: await said(lambda: load_image(queue, open_blob(name))) for name in blob_names() if name != "good"}
    image = await load_image(queue, open_blob("good"))
    embeds, vectors = alloc_emb(queue, 16), 15
    errors["positions"] = await said(lambda: embed_img(queue, image.image, [0, 1], embeds[:3]))
    errors["too many"] = await said(lambda: embed_img(queue, image.image, range(16), embeds))
    errors["behind"] = await said(lambda: embed_img(queue, image.image, [0], embeds[:1], 15))
    errors["position"] = await said(lambda: embed_img(queue, image.image, [10**6], embeds[:1]))
    errors["embeds"] = await said(lambda: embed_img(queue, image.image, [0], [999]))
    errors["image"] = await said(lambda: embed_img(queue, 12345, [0], embeds[:1]))
    errors["queue"] = await said(lambda: embed_img(99, image.image, [0], embeds[:1]))
    errors["blob as image"] = await said(lambda: embed_img(queue, open_blob("good"), [0], embeds[:1]))
    errors["size"] = await said(lambda: num_embs_needed(queue, 100_000, 100_000))
    errors["not filled"] = await said(lambda: forward(queue, [], embeds[:1]))
    drop_image(image.image)
    errors["dropped"] = await said(lambda: embed_img(queue, image.image, [0], embeds[:1]))
    errors["sizes"] = [num_embs_needed(queue, *size) for size in ((64, 40), (7, 7), (1, 1))]
    return errors
"""

EXPECTED = {
    "text": "InvalidArgument: the blob is no image of a known format: send PNG or JPEG",
    "cut": "InvalidArgument: the image is broken: ",
    "bomb": "InvalidArgument: the image has 9000 x 9000 pixels, more than 50000000 in all",
    "positions": "InvalidArgument: embed-img got 2 positions and 3 embeds; give equally many",
    "too many": "InvalidArgument: the image has 15 vectors: 0 to 16 are not all there",
    "behind": "InvalidArgument: the image has 15 vectors: 15 to 16 are not all there",
    "position": "InvalidArgument: position 1000000 is outside of the model's context",
    "embeds": "NotFound: embed 999 is not allocated",
    "image": "NotFound: there is no image 12345",
    "queue": "NotFound: there is no queue 99",
    "blob as image": "InvalidArgument: handle 12 is a blob, not a image",
    "size": "InvalidArgument: the image has 100000 x 100000 pixels",
    "not filled": "InvalidState: embed",
    "dropped": "NotFound: there is no image",
}


def test_each_error_says_what_to_do(guest_cache: Path) -> None:
    blobs = {"text": b"hello", "cut": WIDE[:700], "bomb": bomb(9000, 9000), "good": WIDE}
    errors = result_of(guest_cache, ERRORS, blobs)
    assert errors.pop("sizes") == [15, 15, 15]
    assert errors.keys() == EXPECTED.keys()
    for name, begin in EXPECTED.items():
        assert errors[name].startswith(begin.split(" 12 ")[0]), (name, errors[name])


BOUNDED = """
async def main(args):
    queue, images, said = create_queue(args.model), [], ""
    blob = open_blob("good")
    while not said and len(images) < 1000:
        try:
            images.append(await load_image(queue, blob))
        except QuotaExceeded as error:
            said = str(error)
    drop_image(images.pop().image)
    again = await load_image(queue, blob)
    canceled = load_image(queue, blob)
    canceled.cancel()
    images.append(again)
    for image in images:
        drop_image(image.image)
    loading = load_image(queue, blob)
    close_blob(blob)
    names = [blob_names()]
    await loading
    return [len(images), said, names + [blob_names()]]
"""


def test_what_an_inferlet_holds_of_images_is_bounded(guest_cache: Path) -> None:
    limit = len(WIDE) + 3 * 5 * 48 + 10
    count, said, names = result_of(guest_cache, BOUNDED, {"good": WIDE}, max_blob_bytes=limit)
    assert count == 3
    assert names == [["good"], []], "a blob that is closed counts until it is read"
    assert f"the limit is {limit}: close blobs and drop images first (--max-blob-bytes)" in said


BLIND = """
async def main(args):
    queue, errors = create_queue(args.model), []
    calls = lambda: num_embs_needed(queue, 1, 1), lambda: load_image(queue, 1), lambda: embed_img(queue, 1, [], [])
    for call in calls:
        try:
            call()
        except Unsupported as error:
            errors.append(str(error))
    return [errors, get_model_info(args.model).image_token, [trait.name for trait in available_traits(args.model)]]
"""


def test_a_model_without_eyes_refuses_by_name(guest_cache: Path) -> None:
    errors, token, traits = result_of(guest_cache, BLIND, {}, FakeModel(vision=None))
    assert len(errors) == 3
    assert all("does not implement InputImage" in error for error in errors)
    assert token is None
    assert "InputImage" not in traits
    assert "Blobs" in traits
