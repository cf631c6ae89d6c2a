"""Images in contexts.

An image is a blob, from the client or a server. Decoded, it takes much more memory, which is bounded; so pixels are
kept only until the model has seen them, or another image needs the room, and the blob is decoded again when that was
too early.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inferlet_sdk import bindings, traits
from inferlet_sdk.addresses import Embeds
from inferlet_sdk.errors import InvalidState, QuotaExceeded
from inferlet_sdk.traits.arguments import text, wrong
from inferlet_sdk.traits.core import ModelInfo
from inferlet_sdk.traits.input_image import LoadedImage
from inferlet_sdk.traits.outside.blobs import Blob


class _Held:
    """What the program holds of images at a host."""

    def __init__(self, host: object) -> None:
        self.host = host  # `bindings.host`
        self.named: dict[str, Image] = {}
        self.decoded: dict[Image, int] = {}  # with the handles of their pixels, the one decoded first comes first


_last_held = _Held(None)


def _held() -> _Held:
    global _last_held
    if _last_held.host is not bindings.host:
        _last_held = _Held(bindings.host)
    return _last_held


class Image:
    """An image: a PNG or JPEG in a blob, given by itself or by the name under which the client has sent it."""

    def __init__(self, blob: str | Blob) -> None:
        """Raises NotFound, with the names that there are."""
        self._blob = blob if isinstance(blob, Blob) else Blob.open(text(blob, "name"))
        self.name: str = self._blob.name
        self._model = ""  # whose tokens and pixels these are
        self._tokens: Sequence[int] = ()

    def __repr__(self) -> str:
        return f"Image({self.name!r})"

    @property
    def text(self) -> str:
        """How people read it among texts."""
        return f"<{self.name}>"

    def tokens(self, queue: int, model: ModelInfo) -> Sequence[int]:
        """What stands for it in a prompt: text, and `model.image_token` for each vector. Raises InvalidArgument if it
        is no image that can be read, Unsupported if the model takes none."""
        if self._model != model.name:
            self.forget_pixels()
            self._decode(queue, model)
        return self._tokens

    def pixels(self, queue: int, model: ModelInfo) -> int:
        """The handle of the decoded image."""
        if self._model != model.name or self not in _held().decoded:
            self.forget_pixels()
            self._decode(queue, model)
        return _held().decoded[self]

    def forget_pixels(self) -> None:
        """Frees what can be decoded again. Idempotent."""
        handle = _held().decoded.pop(self, None)
        if handle is not None:
            traits.drop_image(handle)

    def _decode(self, queue: int, model: ModelInfo) -> None:
        loaded = self._load(queue)
        _held().decoded[self] = loaded.image
        self._model, self._tokens = model.name, loaded.tokens

    def _load(self, queue: int) -> LoadedImage:
        while True:
            try:
                return traits.load_image(queue, self._blob.handle).result()
            except QuotaExceeded:
                others = _held().decoded
                if not others:
                    raise
                next(iter(others)).forget_pixels()

    def close(self) -> None:
        """Gives the blob back, once no context needs the image any more. Any use afterwards raises InvalidState."""
        self.forget_pixels()
        if _held().named.get(self.name) is self:
            del _held().named[self.name]
        self._blob.close()


def as_image(image: str | Blob | Image) -> Image:
    """The image; one for each name."""
    if isinstance(image, Image):
        return image
    if isinstance(image, Blob):
        return Image(image)
    if not isinstance(image, str):
        raise wrong("image", "the name of a blob, a Blob, or an Image", image)
    named = _held().named
    if image not in named:
        named[image] = Image(image)
    return named[image]


class Seen(NamedTuple):
    """Where an image stands among the tokens of a sequence."""

    image: Image
    start: int
    end: int


class SeenImages:
    """The images of a sequence, in their order."""

    def __init__(self, places: Sequence[Seen] = ()) -> None:
        self.places = list(places)
        self.unseen = 0  # first tokens, which were imported with their keys: what images they stand for is not known

    def after(self, start: int) -> bool:
        """Whether a part of one stands at token `start` or behind it."""
        return bool(self.places) and self.places[-1].end > start

    def copy(self) -> SeenImages:
        """For a fork."""
        copied = SeenImages(self.places)
        copied.unseen = self.unseen
        return copied

    def append(self, others: SeenImages, start: int) -> None:
        """Those of another sequence, whose tokens begin at `start` here, all of which have keys."""
        if others.unseen:
            self.unseen = start + others.unseen
        self.places += [Seen(image, first + start, end + start) for image, first, end in others.places]

    def cut(self, length: int) -> None:
        """Only the first `length` tokens are left."""
        self.unseen = min(self.unseen, length)
        self.places = [one._replace(end=min(one.end, length)) for one in self.places if one.start < length]

    def behind(self, length: int) -> list[Seen]:
        """Those behind the first `length` tokens, as they stand without these. Raises InvalidState if one of them is
        partly among these."""
        found = [one for one in self.places if one.end > length]
        if found and found[0].start < length:
            raise InvalidState(
                f"an image stands at tokens {found[0].start} to {found[0].end}: begin before it, or behind it"
            )
        return [one._replace(start=one.start - length, end=one.end - length) for one in found]

    def check_seen(self, model: ModelInfo, tokens: Sequence[int], start: int) -> None:
        """Raises InvalidState if the tokens of the sequence from `start` on stand for a part of an image that is not
        there."""
        if start < self.unseen and model.image_token in tokens[: self.unseen - start]:
            raise InvalidState(
                "the context was opened from an export, and ends within an image that it does not have: truncate it to "
                "what is before the image, and fill the image again"
            )

    def embed(
        self, queue: int, model: ModelInfo, tokens: Sequence[int], start: int, offset: int, inputs: Embeds
    ) -> None:
        """Fills embeds with the tokens of the sequence from `start` on, some of which stand for what is seen in images.
        Token n is at position `offset` + n."""
        stop, seen = start + len(tokens), set()
        for image, first, end in self.places:
            begin, last = max(first, start), min(end, stop)
            if begin >= last:
                continue
            inside = image.tokens(queue, model)
            places = [at for at in range(begin, last) if inside[at - first] == model.image_token]
            before = sum(token == model.image_token for token in inside[: begin - first])
            if places:
                positions = [at + offset for at in places]
                _embed_image(queue, image.pixels(queue, model), positions, _at(inputs, start, places), before)
            if last == end:
                image.forget_pixels()
            seen.update(places)
        rest = [at for at in range(start, stop) if at not in seen]
        if rest:
            text = [tokens[at - start] for at in rest]
            traits.embed_txt(queue, text, [at + offset for at in rest], _at(inputs, start, rest))


def _embed_image(queue: int, handle: int, positions: Sequence[int], embeds: Embeds, first: int) -> None:
    try:
        traits.embed_img(queue, handle, positions, embeds, first)
    except QuotaExceeded:  # of bytes that wait: those of images before it
        traits.synchronize(queue).result()
        traits.embed_img(queue, handle, positions, embeds, first)


def _at(embeds: Embeds, start: int, places: Sequence[int]) -> Embeds:
    """Those of the embeds, which begin at token `start`, that are for these tokens."""
    found, begin = Embeds(()), 0
    for n, place in enumerate(places, 1):
        if n == len(places) or places[n] != place + 1:
            found += embeds[places[begin] - start : place + 1 - start]
            begin = n
    return found
