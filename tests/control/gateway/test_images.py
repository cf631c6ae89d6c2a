"""Which texts of a body are images."""

from __future__ import annotations

import json
import tracemalloc
from base64 import b64encode
from hashlib import sha256

import pytest

from pie_control.gateway import images
from pie_control.gateway.images import LONGEST_BEGINNING, PIECE, images_of

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(100))
JPEG = b"\xff\xd8\xff\xe0" + b"\xff\xff" * 60


def name(data: bytes) -> str:
    return f"image-{sha256(b64encode(data)).hexdigest()[:32]}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"data:image/png;base64,{b64encode(PNG).decode()}", [PNG]),
        (f"data:image/jpeg;base64,{b64encode(JPEG).decode()}", [JPEG]),
        (b64encode(PNG).decode(), [PNG]),
        (f"data:image/png;base64,{b64encode(PNG).decode()[:-3]}", []),
        (f'say "data:image/png;base64,{b64encode(PNG).decode()}"', []),
        ("A" * 200, []),
        ("data:image/png;base64,", []),
    ],
)
def test_images_of_a_body(text: str, found: list[bytes]) -> None:
    body = json.dumps({"messages": [{"url": text}, text]})
    expected = {name(data): data for data in found}
    assert images_of(body.encode()) == expected
    assert images_of(body.replace("/", "\\/").encode()) == expected


def test_long_texts_take_no_memory_beside_themselves() -> None:
    body = b'["iVBORw0KGgo", "' + b"A" * (4 << 20) + b' "]'
    tracemalloc.start()
    try:
        assert images_of(body) == {}
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("before", range(PIECE - LONGEST_BEGINNING, PIECE + 2, 9))
def test_images_are_found_wherever_they_stand(before: int) -> None:
    body = b'["' + b"a" * before + b'", "data:image/png;base64,' + b64encode(PNG) + b'"]'
    assert images_of(body) == {name(PNG): PNG}


@pytest.mark.parametrize("size", [PIECE, 2 * PIECE + 5])
def test_images_are_decoded_however_large_they_are(size: int) -> None:
    data = PNG + bytes(size)
    assert images_of(b'["' + b64encode(data) + b'"]') == {name(data): data}
    for wrong in (b"!", b"=A", b'\\"'):
        assert images_of(b'["' + b64encode(data)[:-4] + wrong + b'"]') == {}


def test_texts_that_are_no_images_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    monkeypatch.setattr(images, "_decoded", lambda text: read.append(len(text)))
    body = b'["/9j/' + b"A" * 100 + b'", "' + b"A" * 5000 + b'!", "' + b"A" * 5000
    images_of(body)
    assert read == [104]
