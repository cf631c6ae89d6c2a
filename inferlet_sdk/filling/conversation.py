"""Chat messages in a context.

A chat template renders whole conversations, and it decides what stands between two messages. So each turn renders all
messages again and keeps the longest common token prefix. Then the context holds exactly the rendered tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from inferlet_sdk import traits
from inferlet_sdk.errors import InvalidArgument
from inferlet_sdk.images import Image, Seen, as_image
from inferlet_sdk.sequences.dropping import before_dropped
from inferlet_sdk.sequences.sequence import TokenSequence
from inferlet_sdk.texts import common_length
from inferlet_sdk.tools.declaring import AnyTool, Declared, declare
from inferlet_sdk.traits.arguments import text, whole, wrong
from inferlet_sdk.traits.core import ModelInfo


class Conversation:
    """The messages of a context, and their place among its tokens."""

    def __init__(self) -> None:
        self._messages: list[Mapping[str, Any]] = []
        self._images: list[Image] = []  # of all messages
        self._start: int | None = None  # tokens before the first message
        self._end = 0  # tokens up to the last `add`
        self._left = 0  # how many of these are there since; fewer if the context was cut
        self._declared = Declared()
        self._variables: Mapping[str, Any] = {}

    def copy(self) -> Conversation:
        """A copy for a forked context."""
        other = Conversation()
        other._messages, other._start, other._end = self._messages.copy(), self._start, self._end
        other._images, other._left = self._images.copy(), self._left
        other._declared, other._variables = self._declared, self._variables
        return other

    def state(self) -> dict[str, Any]:
        """All of it, for a snapshot."""
        return {
            "messages": self._messages,
            "images": [image.name for image in self._images],
            "start": self._start,
            "end": self._end,
            "left": self._left,
            "tools": list(self._declared.tools),
            "system": self._declared.system,
            "variables": self._variables,
        }

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Conversation:
        """The conversation of a snapshot. Raises NotFound if the blob of an image is not there."""
        found = cls()
        found._messages, start = [dict(one) for one in state["messages"]], state["start"]
        found._start, found._end = None if start is None else whole(start, "start"), whole(state["end"], "end")
        found._left = whole(state.get("left", found._end), "left")
        found._images = [as_image(name) for name in state["images"]]
        found._declared = Declared([dict(one) for one in state["tools"]], text(state["system"], "system"))
        found._variables = dict(state.get("variables", {}))
        return found

    def begun(
        self,
        sequence: TokenSequence,
        messages: Sequence[Mapping[str, Any]],
        tools: Iterable[AnyTool],
        variables: Mapping[str, Any] | None,
    ) -> bool:
        """Whether a context begins with these messages, as `add` fills them; then it goes on from there, and what
        stands behind them is a reply."""
        self._messages = _without_images(messages, self._images)
        self._declared, self._variables = declare(sequence.queues, tools) or self._declared, variables or {}
        for is_reply in (True, False):
            _, rendered, _ = self._render(sequence, self._messages, self._images, 0, is_reply)
            if common_length(sequence.tokens, rendered) == len(rendered):
                self._start, self._end, self._left = 0, len(rendered), len(rendered)
                return True
        return False

    def cut(self, length: int) -> None:
        """The context keeps its first `length` tokens: the next `add` goes on from what is left of the messages."""
        self._left = min(self._left, length)

    def add(
        self,
        sequence: TokenSequence,
        messages: Sequence[Mapping[str, Any]],
        tools: Iterable[AnyTool],
        add_generation_prompt: bool,
        reply: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        """Appends the reply that was generated since the last messages, or what stands for it, then new messages.

        `tools` and `variables`, if there are any, hold from now on, instead of those before.
        """
        if self._start is not None and self._left < self._end:
            self._keep_left(sequence, self._start)
        start = len(sequence.tokens) if self._start is None else self._start
        images = self._images.copy()
        new = _without_images(messages, images)
        all_messages = [*self._messages, *(self._reply(sequence) if reply is None else reply), *new]
        before = self._declared, self._variables
        self._declared = declare(sequence.queues, tools) or self._declared
        self._variables = variables or self._variables
        try:
            shown, rendered, seen = self._render(sequence, all_messages, images, start, add_generation_prompt)
        except BaseException:
            self._declared, self._variables = before
            raise
        told = shown[:1], self._declared.tools, False, self._variables
        end = start + common_length(sequence.tokens[start:], rendered)
        end = before_dropped(sequence.pages.dropped, end)  # what was dropped behind it is another text now
        again, places = sequence.tokens[end:start], sequence.images.places
        sequence.truncate(end)
        has_system = end <= start and len(shown) > 1 and shown[0].get("role") == "system"
        parts = (partial(_rendered, sequence, *told),) if has_system else ()
        sequence.append([*again, *rendered[max(end - start, 0) :]], parts)
        if seen or again:
            sequence.images.places = [*(one for one in places if one.start < start), *seen]
        self._messages, self._images = all_messages, images
        self._start, self._end, self._left = start, len(sequence.tokens), len(sequence.tokens)

    def _render(
        self,
        sequence: TokenSequence,
        messages: Sequence[Mapping[str, Any]],
        images: Sequence[Image],
        start: int,
        add_generation_prompt: bool,
    ) -> tuple[list[Mapping[str, Any]], Sequence[int], list[Seen]]:
        """Messages as the template gets them, their tokens behind the first `start`, and where images are in these."""
        shown = self._declared.put_into(messages)
        with sequence.queues.some() as queue:
            rendered = traits.tokenize_chat(queue, shown, self._declared.tools, add_generation_prompt, self._variables)
            if images:
                return shown, *_with_images(queue, sequence.info, rendered, images, start)
        return shown, rendered, []

    def _keep_left(self, sequence: TokenSequence, start: int) -> None:
        """Forgets the messages that were cut off. Of one that was cut in its middle, the text that is left stays. What
        comes behind them is a reply."""
        messages, left = self._messages, sequence.tokens[start : self._left]
        for count in range(len(messages), 0, -1):
            images = self._images[: sum(map(_count_images, messages[:count]))]
            may_reply = count == len(messages) or messages[count].get("role") == "assistant"
            for is_reply in (True, False) if may_reply else (False,):  # whether the beginning of a reply is there
                with suppress(InvalidArgument):  # not all templates take each part of a conversation
                    _, rendered, _ = self._render(sequence, messages[:count], images, start, is_reply)
                    if common_length(left, rendered) == len(rendered):
                        half = [] if is_reply else _half(sequence, left[len(rendered) :], messages[count:])
                        self._messages, self._images = messages[:count] + half, images
                        self._end = start + len(rendered) if is_reply else self._left
                        return
        self._messages, self._images, self._end = _half(sequence, left, messages), [], self._left
        if not left:
            self._start = None

    def _reply(self, sequence: TokenSequence) -> list[Mapping[str, Any]]:
        tokens = sequence.tokens[self._end :] if self._start is not None else []
        if not tokens:
            return []
        said = sequence.detokenize(tokens)
        if sequence.half == len(sequence.tokens):
            said = said.removesuffix("\ufffd")  # half of a character
        return [{"role": "assistant", "content": said}]


def _half(sequence: TokenSequence, left: Sequence[int], cut: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The first of the messages that were cut off, with as much of its text as there is in the tokens that are left."""
    content = cut[0].get("content") if cut else None
    if not isinstance(content, str):
        return []
    text = sequence.detokenize(left)
    half = next((content[:n] for n in range(len(content), 0, -1) if text.endswith(content[:n])), "")
    return [{"role": cut[0].get("role"), "content": half}] if half else []


def _count_images(message: Mapping[str, Any]) -> int:
    content = message.get("content")
    parts = content if isinstance(content, list) else ()
    return sum(isinstance(part, Mapping) and part.get("type") == "image" for part in parts)


def _without_images(messages: Sequence[Mapping[str, Any]], images: list[Image]) -> list[Mapping[str, Any]]:
    """Messages for the template: parts of text alone are one text, as many templates take no parts. Their images go to
    the list."""
    found = []
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise wrong(f"messages[{place}]", "a mapping, such as {'role': 'user', 'content': '...'}", message)
        content = message.get("content")
        if isinstance(content, list | tuple):
            content = [_part(one, images) for one in content]
            if all(part["type"] == "text" for part in content):
                content = "\n".join(part["text"] for part in content)
            message = {**message, "content": content}
        found.append(message)
    return found


def _part(part: Any, images: list[Image]) -> Mapping[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "image":
        images.append(as_image(part.get("image")))
        return {"type": "image"}
    if kind != "text" or not isinstance(part.get("text"), str):
        wanted = "parts, each {'type': 'text', 'text': ...} or {'type': 'image', 'image': the name of a blob}"
        raise wrong("content", wanted, part)
    return {"type": "text", "text": part["text"]}


def _with_images(
    queue: int, model: ModelInfo, rendered: Sequence[int], images: Sequence[Image], start: int
) -> tuple[list[int], list[Seen]]:
    """Rendered messages with the tokens of the images in place of one token for each, and where these stand."""
    tokens: list[int] = []
    seen: list[Seen] = []
    for token in rendered:
        if token != model.image_token or len(seen) == len(images):
            tokens.append(token)
            continue
        image, place = images[len(seen)], start + len(tokens)
        tokens += image.tokens(queue, model)
        seen.append(Seen(image, place, start + len(tokens)))
    if len(seen) < len(images):
        images[0].tokens(queue, model)  # says so, if the model takes none
        raise InvalidArgument(
            f"the chat template of {model.name} shows {len(seen)} of {len(images)} images: use `fill_image`"
        )
    return tokens, seen


def _rendered(sequence: TokenSequence, *told: Any) -> Sequence[int]:
    """The tokens of messages alone; none, if the template takes no such conversation."""
    try:
        with sequence.queues.some() as queue:
            return traits.tokenize_chat(queue, *told)
    except InvalidArgument:
        return ()
