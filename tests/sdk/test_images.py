"""Images in contexts: the model sees each vector of an image as a token of its own."""

from __future__ import annotations

import re
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from inferlet_sdk import Context, Image, InvalidArgument, InvalidState, NotFound, traits
from inferlet_sdk.event_loop import run as run_loop
from pie_control.calls.input_image.image import Image as HostImage
from pie_control.images.tiling import text_of, tiling_of
from tests.helpers.native_host import NativeHost, install, refuse, tokenized
from tests.helpers.outside import prepared
from tests.helpers.scripted_model import IMAGES

VECTORS = "#"
BLOBS = {"cat": b"meow!", "dog": b"woof", "cat again": b"meow!", "mouse": b"m" * 70, "broken": b"broken"}


@pytest.fixture
def host() -> NativeHost:
    return install(max_context=2000, blobs=BLOBS)


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        return await work()

    return run_loop(main())


def stands_for(name: str) -> list[int]:
    image = prepared(BLOBS[name], IMAGES)
    text = text_of(IMAGES, tiling_of(IMAGES, image.width, image.height), VECTORS)
    return [token for part in re.split(f"({VECTORS})", text) for token in one_part(part)]


def one_part(part: str) -> list[int]:
    return [IMAGES.placeholder] * IMAGES.tile_embeds if part == VECTORS else tokenized(part)


def seen_tokens(*parts: str | tuple[str]) -> list[int]:
    """Tokens that the model sees the same in as in texts and images, which stand in tuples."""
    found: list[int] = []
    for part in parts:
        if isinstance(part, str):
            found += part.encode()
        else:
            tiles = [zlib.crc32(tile) for tile in prepared(BLOBS[part[0]], IMAGES).tiles]
            vectors = iter(tile * 4 + place for tile in tiles for place in range(IMAGES.tile_embeds))
            found += [next(vectors) if token == IMAGES.placeholder else token for token in stands_for(part[0])]
    return found


async def continued(context: Context) -> list[int]:
    await context.generate_until(max_tokens=6, stop=[])
    return list(context.tokens[-6:])


def expected(host: NativeHost, tokens: list[int]) -> int:
    """The next token after these, by the model of the host."""
    return host.model.expected(tokens, 1)[0]


def next_after(host: NativeHost, fill: Callable[[Context], object], *parts: Any) -> tuple[int, int]:
    async def work() -> tuple[int, int]:
        context = Context()
        fill(context)
        token = await context.sample()
        return token, expected(host, seen_tokens(*parts))

    found: tuple[int, int] = run(work)
    return found


FILLS: dict[str, tuple[Callable[[Context], object], tuple[Any, ...]]] = {
    "alone": (lambda c: c.fill_image("cat"), (("cat",),)),
    "in text": (lambda c: c.fill("see ").fill_image("cat").fill(" now"), ("see ", ("cat",), " now")),
    "several": (
        lambda c: c.fill_image("cat").fill_image("dog").fill("x").fill_image("cat"),
        (("cat",), ("dog",), "x", ("cat",)),
    ),
    "more than fits a short forward": (lambda c: c.fill("x").fill_image("mouse").fill("y"), ("x", ("mouse",), "y")),
    "an Image": (lambda c: c.fill_image(Image("dog")).fill("?"), (("dog",), "?")),
}


@pytest.mark.parametrize("name", FILLS)
def test_the_model_sees_images_where_they_were_filled(host: NativeHost, name: str) -> None:
    fill, parts = FILLS[name]
    token, wanted = next_after(host, fill, *parts)
    assert token == wanted
    assert not [one for one in host.handles if isinstance(one, HostImage)], "gone when the model has seen them"


def test_the_tokens_of_a_context_have_placeholders(host: NativeHost) -> None:
    context = Context().fill("a").fill_image("dog").fill("b")
    assert list(context.tokens) == [97, *stands_for("dog"), 98]
    assert len(context) == len(stands_for("dog")) + 2


def test_equal_images_are_seen_alike_and_others_are_not(host: NativeHost) -> None:
    async def work() -> list[list[int]]:
        contexts = [Context().fill_image(name).fill("is") for name in ("cat", "cat again", "dog")]
        return [await continued(context) for context in contexts]

    one, other, different = run(work)
    assert one == other != different


def test_a_distribution_after_an_image_is_that_after_what_was_seen(host: NativeHost) -> None:
    async def work() -> tuple[int, int]:
        dist = await Context().fill("a").fill_image("dog").next_dist()
        return dist.max_index(), expected(host, seen_tokens("a", ("dog",)))

    token, wanted = run(work)
    assert token == wanted


def test_forks_share_what_was_seen(host: NativeHost) -> None:
    async def work() -> list[list[int]]:
        context = Context().fill("see ").fill_image("mouse").fill(" it")
        children = [context.fork(), context.fork()]
        host.calls.clear()
        results = [await continued(one) for one in (context, *children)]
        assert "embed_img" not in host.calls
        return results

    one, two, three = run(work)
    assert one == two == three


@pytest.mark.parametrize("length", range(1, 9))
def test_what_is_cut_off_is_not_seen_and_the_rest_is_seen_again(host: NativeHost, length: int) -> None:
    async def work() -> None:
        context = Context().fill("a").fill_image("cat").fill("b")
        await context.flush()
        context.truncate(length)
        token = await context.sample()
        assert token == expected(host, seen_tokens("a", ("cat",), "b")[:length])
        context.fill("c").fill_image("dog")
        token = await context.sample()
        kept = seen_tokens("a", ("cat",), "b")[:length]
        assert token == expected(host, [*kept, *seen_tokens("c", ("dog",))])

    run(work)


def test_a_score_behind_an_image(host: NativeHost) -> None:
    async def work() -> None:
        context = Context().fill_image("cat").fill("x")
        assert len(await context.score("yz")) == 2

    run(work)


TEMPLATE = """{% for message in messages %}<|turn|>{{ message['role'] }}
{% for part in message['content'] if part is not string %}
{{- part['text'] if 'text' in part else '<|image|>' }}{% else %}
{{- message['content'] }}{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|turn|>{% endif %}"""
"""Shows the parts of a content one after the other."""


def test_chat_with_images() -> None:
    host = install(max_context=2000, blobs=BLOBS, template=TEMPLATE)

    async def work() -> None:
        context = Context()
        question = [{"type": "text", "text": "who? "}, {"type": "image", "image": "cat"}]
        context.fill_chat("user", question)
        first = list(context.tokens)
        await context.generate_until(max_tokens=3, stop=[])
        context.fill_chat([{"role": "user", "content": [{"type": "image", "image": "dog"}]}])
        assert list(context.tokens[: len(first)]) == first
        tokens, start = list(context.tokens), 0
        for name in ("cat", "dog"):
            whole = stands_for(name)
            start = next(n for n in range(start, len(tokens)) if tokens[n : n + len(whole)] == whole)
            tokens[start : start + len(whole)] = seen_tokens((name,))
        assert await context.sample() == expected(host, tokens)

    run(work)


def test_a_chat_goes_on_from_the_images_that_are_left() -> None:
    install(max_context=2000, blobs=BLOBS, template=TEMPLATE)

    async def work() -> None:
        cat, dog = ({"role": "user", "content": [{"type": "image", "image": name}]} for name in ("cat", "dog"))
        plain, again = Context().fill_chat([cat, cat]), Context().fill_chat([cat]).fill_chat([dog])
        again.truncate(len(again) - 20).fill_chat([cat])
        assert again.tokens == plain.tokens
        assert await again.sample() == await plain.sample()
        assert await again.sample() != await Context().fill_chat([cat, dog]).sample()

    run(work)


def test_a_template_without_images_is_named(host: NativeHost) -> None:
    content = [{"type": "image", "image": "cat"}]
    with pytest.raises(InvalidArgument, match="template of toy shows 0 of 1 images: use `fill_image`"):
        Context().fill_chat("user", content)


def test_a_broken_image_fails_where_it_is_needed_and_text_is_kept(host: NativeHost) -> None:
    async def work() -> None:
        context = Context().fill("a").fill_image("broken").fill("b")
        for _ in range(2):
            with pytest.raises(InvalidArgument, match="the image is broken"):
                await context.sample()

    run(work)


def test_names_and_types_are_checked_at_once(host: NativeHost) -> None:
    with pytest.raises(NotFound, match="no blob 'bird'"):
        Context().fill_image("bird")
    with pytest.raises(TypeError, match="image: give the name of a blob, a Blob, or an Image, not int 7"):
        Context().fill_image(7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="image"):
        Context().fill_chat("user", [{"type": "image"}])


def test_pixels_make_room_for_those_of_other_images(host: NativeHost) -> None:
    """The host holds two decoded images."""
    images: Any = vars(host)["input_image"]
    real = images.load_image

    def bounded(queue: int, blob: int) -> int:
        if sum(isinstance(one, HostImage) for one in host.handles) >= 2:
            raise refuse("quota-exceeded", "the limit is 2: drop images first")
        return int(real(queue, blob))

    images.load_image = bounded
    token, wanted = next_after(
        host,
        lambda c: c.fill_image("cat").fill_image("dog").fill_image("mouse").fill_image("cat again"),
        *(("cat",), ("dog",), ("mouse",), ("cat again",)),
    )
    assert token == wanted


def test_an_image_gives_its_blob_back(host: NativeHost) -> None:
    image = Image("cat")
    assert (repr(image), len(host.handles)) == ("Image('cat')", 1)
    image.close()
    assert not host.handles


def test_every_call_by_its_name(host: NativeHost) -> None:
    queue = traits.create_queue("toy")
    blob = traits.open_blob("cat")
    assert traits.read_blob(blob, 1, 3) == b"eow"
    assert traits.read_blob(blob, 9) == b""
    loaded = traits.load_image(queue, blob).result()
    assert list(loaded.tokens) == stands_for("cat")
    embeds = traits.alloc_emb(queue, 2)
    traits.embed_img(queue, loaded.image, [7, 9], embeds, first=2)
    traits.forward(queue, [], embeds, [], embeds[1:])
    vectors = [token for token in seen_tokens(("cat",)) if token > 1000]
    scores = host.model.scores(((vectors[2], 7), (vectors[3], 9)))
    assert traits.get_next_dist(queue, embeds[1]).result().max_index() == scores.argmax()
    assert traits.num_embs_needed(queue, 3, 4) == len(vectors)
    traits.drop_image(loaded.image)
    traits.close_blob(blob)
    assert traits.blob_names() == list(BLOBS)[1:], "those that nobody has taken"


@pytest.mark.parametrize(("start", "stop"), [(1, 8), (3, 5), (0, 2), (7, 9), (2, 3)])
def test_images_and_parts_of_them_can_be_dropped(host: NativeHost, start: int, stop: int) -> None:
    """The rest moves up, also in forks, and when the last token runs again."""

    async def work() -> None:
        context = Context().fill("a").fill_image("cat").fill("bcd")
        await context.flush()
        context.drop(start, stop)
        seen = list(enumerate(seen_tokens("a", ("cat",), "bcd")))
        left = tuple((token, n) for n, token in enumerate(token for n, token in seen if not start <= n < stop))
        for one in (context, context.fork(), Context.restore(context.snapshot())):
            assert await one.sample() == int(host.model.scores(left).argmax())
        assert len(context) == len(seen)

    run(work)


def test_a_window_leaves_an_image_behind(host: NativeHost) -> None:
    async def work() -> None:
        context = Context().fill("ab").fill_image("mouse").fill("it goes on")
        context.window(8, sink=1)
        tokens = seen_tokens("ab", ("mouse",), "it goes on")
        left = tuple((token, n) for n, token in enumerate([tokens[0], *tokens[-8:]]))
        assert await context.sample() == int(host.model.scores(left).argmax())
        context.truncate(len(context) - 2)
        with pytest.raises(InvalidState, match="were dropped"):
            context.truncate(20)

    run(work)


def test_a_context_that_begins_anew_sees_its_images(host: NativeHost) -> None:
    async def work() -> None:
        with Context().fill("ab").fill_image("cat").fill("cd").fill_image("dog").fill("ef") as context:
            last = len(stands_for("dog")) + len("ef")
            with context.restarted(last + 1) as anew:
                assert await anew.sample() == expected(host, seen_tokens("d", ("dog",), "ef"))
            with pytest.raises(InvalidState, match=r"an image stands at tokens .*: begin before it, or behind it"):
                context.restarted(last - 1)
            assert len(context.restarted(2)) == 2

    run(work)


def test_a_snapshot_names_images(host: NativeHost) -> None:
    async def work() -> None:
        context = Context().fill("a").fill_image("cat").fill("b").fill_image("dog")
        expected = await continued(context.fork())
        kept = context.snapshot()
        assert await continued(Context.restore(kept)) == expected
        context.truncate(4)
        assert await continued(Context.restore(context.snapshot())) == await continued(context)

    run(work)


def test_a_context_with_images_goes_on_under_a_name_but_does_not_run_them_again(host: NativeHost) -> None:
    async def work() -> None:
        context = Context().fill("a").fill_image("cat").fill("b")
        await context.export("pets")
        expected = await continued(context)
        opened = await Context.open("pets")
        assert await continued(opened.fork()) == expected
        other = (await Context.open("pets")).truncate(1).fill_image("cat").fill("b")
        assert await continued(other) == expected
        for length in (6, 8):
            within = opened.fork().truncate(length)
            with pytest.raises(InvalidState, match="ends within an image that it does not have"):
                await within.sample()
        with pytest.raises(InvalidState, match="ends within an image that it does not have"):
            await Context.join([opened.fork().truncate(7), opened.fork().truncate(6)]).sample()

    run(work)
