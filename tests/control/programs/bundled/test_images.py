"""Images in messages, on a model without weights that takes them."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image

from pie_control.authoring.native.server import native_server
from pie_control.config import ServerConfig, build_config
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from pie_inference.protocol.conversation import ModelDescription
from pie_inference.testing.small_vision import PLACEHOLDER
from tests.control.programs.bundled.launching import Ask, asking, marked

TEMPLATE = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
)


class Seeing(FakeModel):
    """Its template shows images."""

    def describe(self) -> tuple[ModelDescription, ...]:
        return (marked(super().describe()[0], {"<image>": PLACEHOLDER}, TEMPLATE),)


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    def client(_config: ServerConfig, _model: Any) -> InProcessClient:
        return InProcessClient(Seeing("demo"))

    with native_server(build_config({}).resolved(), client) as server:
        yield asking(server, "chat_completions")


def picture(colour: str, format: str) -> str:
    file = io.BytesIO()
    Image.new("RGB", (20, 20), colour).save(file, format)
    return b64encode(file.getvalue()).decode()


def test_images_of_data_urls(ask: Ask) -> None:
    def answer(url: str) -> Any:
        part = {"type": "image_url", "image_url": {"url": url}}
        asked = [{"role": "user", "content": [{"type": "text", "text": "What"}, part, part]}]
        return ask(messages=asked, max_tokens=8, temperature=0, ignore_eos=True)

    png, jpeg = picture("red", "PNG"), picture("blue", "JPEG")
    seen = answer(f"data:image/png;base64,{png}")
    assert seen.body["usage"]["prompt_tokens"] > 6
    assert seen.text != answer(f"data:image/jpeg;base64,{jpeg}").text
    assert answer(f"data:image/gif;base64,{png[:40]}").error["param"] == "messages[0].content[1].image_url.url"
