"""Chat completions and completions as OpenAI's clients read them."""

from __future__ import annotations

import json
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from inferlet_sdk import traits
from inferlet_sdk.context import Context
from inferlet_sdk.served.requests.wanted import Place, Wanted
from inferlet_sdk.served.writing.answer import Answer, Part, ToolCall
from inferlet_sdk.served.writing.prompts import Echo
from inferlet_sdk.traits.runs import TokenLogprobs

TEXT_PLACE = "\0text\0"
CHAT, CHUNK, TEXT = "chat.completion", "chat.completion.chunk", "text_completion"


class Reply:
    """What all chunks or the whole body of an answer begin with."""

    def __init__(self, kind: str, wanted: Wanted) -> None:
        """`kind`: CHAT, CHUNK or TEXT."""
        self.wanted = wanted
        prefix = "cmpl" if kind == TEXT else "chatcmpl"
        self.head = {
            "id": f"{prefix}-{wanted.request_id}",
            "object": kind,
            "created": int(time.time()),
            "model": wanted.name,
        }

    def body(self, choices: Sequence[Any], usage: dict[str, Any], **others: Any) -> dict[str, Any]:
        """The whole body."""
        return {**self.head, "choices": list(choices), "usage": usage, **others}

    def chunk(self, choice: dict[str, Any], **others: Any) -> str:
        """An event of a stream."""
        usage = {"usage": None} if self.wanted.include_usage else {}
        return json.dumps({**self.head, "choices": [choice], **usage, **others})

    def frame(self, choice: dict[str, Any]) -> tuple[str, str]:
        """A chunk around a text, which stands in `choice` as TEXT_PLACE."""
        return frame_of(self.chunk(choice))

    def last_chunk(self, usage: dict[str, Any]) -> str:
        """The event that tells the usage, if the request has asked for it."""
        return json.dumps({**self.head, "choices": [], "usage": usage})


def frame_of(event: str) -> tuple[str, str]:
    """What stands before and behind TEXT_PLACE in the JSON of an event."""
    before, _, after = event.partition(json.dumps(TEXT_PLACE)[1:-1])
    return before, after


def pinned_of(answers: Sequence[Answer]) -> dict[str, int]:
    """How many tokens of the prompts are pinned, for a request that has asked for that."""
    return {"pinned_tokens": sum(one.pinned for one in answers)} if any(one.pins for one in answers) else {}


def usage_of(prompts: Sequence[Context], sizes: Iterable[int], answers: Sequence[Answer]) -> dict[str, Any]:
    """Tokens of the prompts, those of them that the worker did not compute, and tokens of the answers."""
    asked, written = sum(sizes), sum(one.written for one in answers)
    usage: dict[str, Any] = {
        "prompt_tokens": asked,
        "completion_tokens": written,
        "total_tokens": asked + written,
        "prompt_tokens_details": {"cached_tokens": sum(one.found for one in prompts), **pinned_of(answers)},
    }
    if reasoning := sum(one.reasoning_tokens for one in answers):
        usage["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return usage


Usage = Callable[[Sequence[Answer]], dict[str, Any]]
"""The usage of answers to a request."""


def so_far(answer: Answer, usage: Usage) -> dict[str, Any]:
    """The usage of an answer that is being written, for those who ask for it with each chunk."""
    return {"usage": usage([answer])} if answer.wanted.continuous_usage else {}


# ---- chat ------------------------------------------------------------------------------------------------------------


def message_of(part: Part) -> dict[str, Any]:
    """The assistant's message that a whole answer is. Reasoning has the names of both kinds of servers."""
    message: dict[str, Any] = {"role": "assistant", "content": part.text}
    if part.calls:
        message |= {"content": part.text.strip() or None, "tool_calls": [_call(one) for one in part.calls]}
    return {**message, **_reasoning(part), "refusal": None}


def delta_of(part: Part, calls_before: int) -> dict[str, Any]:
    """What a part adds to the assistant's message."""
    delta: dict[str, Any] = {"content": part.text} if part.text else {}
    if part.calls:
        delta["tool_calls"] = [{"index": calls_before + n, **_call(one)} for n, one in enumerate(part.calls)]
    return {**delta, **_reasoning(part)}


def _reasoning(part: Part) -> dict[str, str]:
    return {"reasoning_content": part.reasoning, "reasoning": part.reasoning} if part.reasoning else {}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


# ---- log-probabilities -----------------------------------------------------------------------------------------------


class Offsets:
    """Where the tokens of a text begin in it, one after the other. A character of several tokens counts with the one
    that ends it."""

    def __init__(self, vocabulary: Sequence[bytes], start: int) -> None:
        self._vocabulary = vocabulary
        self._place = start
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def next(self, token: int) -> int:
        """Where the next token begins, in characters."""
        place = self._place
        self._place += len(self._decoder.decode(self._vocabulary[token]))
        return max(0, place)


class Vocabulary:
    """Texts and bytes of single tokens."""

    def __init__(self, ctx: Context) -> None:
        self._bytes = traits.get_vocabs(ctx)

    def text(self, token: int) -> str:
        """Its text; bytes that are no whole characters are told as such."""
        data = self._bytes[token]
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def length(self, tokens: Sequence[int]) -> int:
        """How many characters their text has."""
        return len(b"".join(self._bytes[token] for token in tokens).decode(errors="replace"))

    def offsets(self, start: int = 0) -> Offsets:
        """Tells where tokens begin in a text. `start`: characters before the tokens, below 0 if that many characters of
        the first ones are not in the text."""
        return Offsets(self._bytes, start)

    def chat_logprobs(self, part: Part) -> dict[str, Any]:
        """In the form of chat completions. What a stop string has left of a token has none."""
        pairs = zip(part.tokens, part.logprobs, strict=False)
        return {"content": [self._scored(token, scores) for token, scores in pairs], "refusal": None}

    def _scored(self, token: int, scores: TokenLogprobs) -> dict[str, Any]:
        others = [self._one(*one) for one in _alternatives(token, scores)]
        return {**self._one(token, scores.logprob), "top_logprobs": others}

    def _one(self, token: int, logprob: float) -> dict[str, Any]:
        return {"token": self.text(token), "logprob": _finite(logprob), "bytes": list(self._bytes[token])}

    def prompt_logprobs(self, tokens: Sequence[int], scores: Sequence[TokenLogprobs | None]) -> list[Any]:
        """In the form of vLLM, of each token of a prompt; the first one has none."""
        return [None if one is None else self._ranked(token, one) for token, one in zip(tokens, scores, strict=True)]

    def _ranked(self, token: int, scores: TokenLogprobs) -> dict[str, Any]:
        """By token id. How many tokens are more probable than one that is no alternative is not known."""
        found = {
            str(other): {"logprob": _finite(logprob), "rank": rank, "decoded_token": self.text(other)}
            for rank, (other, logprob) in enumerate(scores.alternatives, 1)
        }
        own = {"logprob": _finite(scores.logprob), "rank": None, "decoded_token": self.text(token)}
        return {str(token): own, **found}

    def text_logprobs(
        self, tokens: Sequence[int], scores: Sequence[TokenLogprobs | None], offsets: Offsets
    ) -> dict[str, Any]:
        """In the form of completions: the first token of a prompt has none, nor has what a stop string has left of one.
        `offsets`: those of this text."""
        scores = [*scores, *[None] * (len(tokens) - len(scores))]
        return {
            "tokens": [self.text(token) for token in tokens],
            "token_logprobs": [None if one is None else _finite(one.logprob) for one in scores],
            "top_logprobs": [self._named(*pair) for pair in zip(tokens, scores, strict=True)],
            "text_offset": [offsets.next(token) for token in tokens],
        }

    def _named(self, token: int, scores: TokenLogprobs | None) -> dict[str, float] | None:
        if scores is None:
            return None
        return {self.text(other): _finite(logprob) for other, logprob in _alternatives(token, scores)}


async def prompt_scores(ctx: Context, place: Place, wanted: Wanted) -> dict[str, Any]:
    """`prompt_logprobs` of a context that has the prompt, for a request that asks for them: the prompt is run for that
    once more."""
    if wanted.prompt_logprobs is None:
        return {}
    echo = await Echo.of(ctx, place, wanted.prompt_logprobs)
    return {"prompt_logprobs": Vocabulary(ctx).prompt_logprobs(echo.tokens, echo.scores)}


def _alternatives(token: int, scores: TokenLogprobs) -> list[tuple[int, float]]:
    """The alternatives of a token. If it is one of them, it has the same number there: clients compare the two to learn
    whether it is the likeliest, and they were computed in different ways."""
    return [(other, scores.logprob if other == token else logprob) for other, logprob in scores.alternatives]


def _finite(logprob: float) -> float:
    """JSON has no infinity."""
    return max(logprob, -9999.0)
