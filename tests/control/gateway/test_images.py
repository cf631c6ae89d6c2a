"""Which texts of a body are images."""

from __future__ import annotations

import json
import tracemalloc
from base64 import b64encode
from hashlib import sha256

import pytest

from pie_control.gateway.images import images_of

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
