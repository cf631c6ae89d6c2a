"""Chat messages in a context.

A chat template renders whole conversations, and it decides what stands between two messages. So each turn renders all
messages again and keeps the longest common token prefix. Then the context holds exactly the rendered tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from inferlet_sdk import traits
from inferlet_sdk.errors import InvalidArgument
from inferlet_sdk.images import Image, Seen, as_image
from inferlet_sdk.sequences.sequence import TokenSequence
from inferlet_sdk.texts import common_length
from inferlet_sdk.tools.declaring import AnyTool, Declared, declare
from inferlet_sdk.traits.core import ModelInfo


class Conversation:
    """The messages of a context, and their place among its tokens."""

    def __init__(self) -> None:
        self._messages: list[Mapping[str, Any]] = []
        self._images: list[Image] = []  # of all messages
        self._start: int | None = None  # tokens before the first message
        self._end = 0  # tokens up to the last `add`
        self._declared = Declared()
        self._variables: Mapping[str, Any] = {}

    def copy(self) -> Conversation:
        """A copy for a forked context."""
        other = Conversation()
        other._messages, other._start, other._end = self._messages.copy(), self._start, self._end
        other._images = self._images.copy()
        other._declared, other._variables = self._declared, self._variables
        return other

    def state(self) -> dict[str, Any]:
        """All of it, for a snapshot."""
        return {
            "messages": self._messages,
            "images": [image.name for image in self._images],
            "start": self._start,
            "end": self._end,
            "tools": list(self._declared.tools),
            "system": self._declared.system,
            "variables": self._variables,
        }

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Conversation:
        """The conversation of a snapshot. Raises NotFound if the blob of an image is not there."""
        found = cls()
        found._messages, found._start, found._end = list(state["messages"]), state["start"], state["end"]
        found._images = [as_image(name) for name in state["images"]]
        found._declared = Declared(state["tools"], state["system"])
        found._variables = state.get("variables", {})
        return found

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
        start = len(sequence.tokens) if self._start is None else self._start
        images = self._images.copy()
        new = [_without_images(message, images) for message in messages]
        all_messages = [*self._messages, *(self._reply(sequence) if reply is None else reply), *new]
        self._declared = declare(sequence.queues, tools) or self._declared
        self._variables = variables or self._variables
        shown = self._declared.put_into(all_messages)
        with sequence.queues.some() as queue:
            rendered = traits.tokenize_chat(queue, shown, self._declared.tools, add_generation_prompt, self._variables)
            told = shown[:1], self._declared.tools, False, self._variables
            seen: list[Seen] = []
            if images:
                rendered, seen = _with_images(queue, sequence.info, rendered, images, start)
        common = common_length(sequence.tokens[start:], rendered)
        sequence.truncate(start + common)
        has_system = not common and len(shown) > 1 and shown[0].get("role") == "system"
        sequence.append(rendered[common:], [partial(_rendered, sequence, *told)] if has_system else ())
        if seen:
            sequence.images.cut(start)
            sequence.images.places += seen
        self._messages, self._start, self._end = all_messages, start, len(sequence.tokens)
        self._images = images

    def _reply(self, sequence: TokenSequence) -> list[Mapping[str, Any]]:
        tokens = sequence.tokens[self._end :] if self._start is not None else []
        return [{"role": "assistant", "content": sequence.detokenize(tokens)}] if tokens else []


def _without_images(message: Mapping[str, Any], images: list[Image]) -> Mapping[str, Any]:
    """A message for the template; its images go to the list."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list | tuple):
        return message
    parts: list[Any] = []
    for part in content:
        if isinstance(part, Mapping) and part.get("type") == "image":
            images.append(as_image(part.get("image")))  # type: ignore[arg-type]  # it checks what it gets
            part = {"type": "image"}
        parts.append(part)
    return {**message, "content": parts}


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
