"""Templates that take the content of a message as a list of parts get a list; others get the text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pie_control.errors import InvalidArgument
from pie_control.services.chat_template import LARGE, ChatTemplate, Conversation, parse_conversation

PARTS = (
    "{% for m in messages %}[{{ m.role }}"
    "{% if m['content'][0]['type'] == 'image' %}:{% else %}: {% endif %}"
    "{% for line in m['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}<image>{% endif %}{% endfor %}]{% endfor %}"
)
"""As that of SmolVLM."""
TEXT = "{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}"
BOTH = (
    "{% for m in messages %}[{{ m.role }}: {% if m.content is string %}{{ m.content }}"
    "{% else %}{% for line in m.content %}{{ line.text }}{% endfor %}{% endif %}]{% endfor %}"
)
STRICT = "{% if messages | length < 2 %}{{ raise_exception('two messages') }}{% endif %}" + TEXT


def rendered(source: str, *messages: dict[str, Any]) -> str:
    return ChatTemplate(source, {}).render(Conversation(list(messages), {}), None, False, 1000)


@pytest.mark.parametrize("source", [PARTS, TEXT, BOTH, STRICT])
def test_a_text_is_shown_whatever_the_template_takes(source: str) -> None:
    messages = {"role": "system", "content": "short"}, {"role": "user", "content": "Hello"}
    assert rendered(source, *messages) == "[system: short][user: Hello]"


def test_images_stand_among_texts() -> None:
    content = [{"type": "image"}, {"type": "text", "text": "what?"}, {"type": "image"}]
    assert rendered(PARTS, {"role": "user", "content": content}) == "[user:<image>what?<image>]"


def test_a_message_without_content_stays_as_it_is() -> None:
    calls: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": []}
    assert rendered("{% for m in messages %}{{ m.tool_calls }}{% endfor %}", calls) == "[]"


@pytest.mark.parametrize("text", ["[", "{", f"[{'1' * 5000}]"])
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="messages is not JSON"):
        parse_conversation(text)


@pytest.mark.parametrize("half", ['"a\\ud83db"', '"\\uDC1D"', '{"\\ud83d": 1}'])
def test_half_of_a_surrogate_pair_is_refused(half: str) -> None:
    with pytest.raises(InvalidArgument, match="messages has half of a surrogate pair, which is no text"):
        parse_conversation(f'[{{"role": "user", "content": {half}}}]')
    whole = parse_conversation('[{"role": "user", "content": "\\ud83d\\udc1d \\\\ud83d"}]')
    assert whole.messages[0]["content"] == "\U0001f41d \\ud83d"


def test_no_long_text_is_read_in_c_which_gives_other_threads_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[Any] = [{"role": "user", "content": 'a "\\ \U0001f600', "more": [None, True, 1, -2.5e3, {}, []]}] * (
        LARGE // 50
    )
    text = json.dumps(messages)
    monkeypatch.setattr(json, "_default_decoder", None)
    assert parse_conversation(text).messages == messages
