"""`Context`: a text that a model continues.

It owns KV pages and an embed, and frees them on `close`, when the program drops it, or when the inferlet ends. It has a
queue while it works. `traits` has every call that `Context` lacks; `queue`, `pages` and `tokens` are there to be used
with these calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import Any, Self

from inferlet_sdk import bindings, traits
from inferlet_sdk.addresses import Pages
from inferlet_sdk.errors import InvalidState
from inferlet_sdk.generation.conversation import Conversation
from inferlet_sdk.generation.generation import Generation
from inferlet_sdk.generation.queues import Queues
from inferlet_sdk.generation.sampling import AnySampler, Greedy, as_sampler
from inferlet_sdk.generation.scoring import score_tokens
from inferlet_sdk.generation.sequence import TokenSequence
from inferlet_sdk.generation.stopping import StopConditions, StopRules
from inferlet_sdk.generation.token_source import sample_once
from inferlet_sdk.images import Image, as_image
from inferlet_sdk.traits import Dist
from inferlet_sdk.traits.arguments import flag, numbers, whole
from inferlet_sdk.traits.arguments import text as checked_text
from inferlet_sdk.traits.core import ModelInfo

_GREEDY = Greedy()


_known: dict[str, Queues] = {}


def _queues(model: str) -> Queues:
    """What all contexts of a model share."""
    queues = _known.get(model)
    if queues is None or queues.host is not bindings.core:  # the rehearsal has another host
        queues = _known[model] = Queues(traits.get_model_info(model), bindings.core)
    return queues


@dataclass(frozen=True)
class _Noted:
    """Text that waits to be tokenized."""

    text: str
    special_tokens: bool


class Context:
    """A growing text with its KV cache. The default model is the first of `available_models()`. All of it runs with the
    LoRA adapter `adapter`, if one is named (see `traits.available_adapters`).

    Filling is lazy: `fill` only stores the text. The next call that needs an output of the model tokenizes the stored
    text in one piece and runs it in one go.
    """

    def __init__(self, model: str | None = None, *, adapter: str | None = None) -> None:
        name = model if model is not None else traits.available_models()[0]
        self._start(TokenSequence(_queues(name), adapter="" if adapter is None else checked_text(adapter, "adapter")))

    def _start(self, sequence: TokenSequence) -> None:
        self._sequence = sequence
        self._noted: list[_Noted | Image] = []
        self._generation: Generation | None = None
        self._conversation = Conversation()

    # ---- what it holds -------------------------------------------------------------------------------------------

    @property
    def model(self) -> ModelInfo:
        """The model's page size, limits and stop tokens."""
        return self._sequence.info

    @property
    def queue(self) -> int:
        """A command queue of its own, made when it is first asked for, for the calls of `traits`."""
        return self._sequence.own_queue()

    @property
    def pages(self) -> Pages:
        """Its KV pages."""
        return self._sequence.pages.pages

    @property
    def tokens(self) -> tuple[int, ...]:
        """All tokens, filled and generated."""
        return tuple(self._read().tokens)

    @property
    def text(self) -> str:
        """Text of all tokens, without special tokens."""
        sequence = self._read()
        return sequence.detokenize(sequence.tokens)

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self._read().tokens)

    # ---- filling -------------------------------------------------------------------------------------------------

    def fill(self, text: str | Iterable[int], *, special_tokens: bool = True) -> Self:
        """Appends text or tokens; adds no special tokens. Those written in the text are recognized: `fill` is for the
        program's own text. Give text of others with `special_tokens=False`: then it is plain text, whatever it says.
        """
        if isinstance(text, str):
            noted = _Noted(checked_text(text, "text"), flag(special_tokens, "special_tokens"))
            self._open("fill")
            self._noted.append(noted)
        else:
            self._settled("fill").tokens += numbers(text, "text", "a token id")
        return self

    def fill_image(self, image: str | Image) -> Self:
        """Appends an image that the client has sent, given by the name of its blob, with the text that the model wants
        around images. The next call that needs an output of the model decodes it; that raises InvalidArgument if it is
        no PNG or JPEG, broken or too large, Unsupported if the model takes no images."""
        found = as_image(image)
        self._open("fill_image")
        self._noted.append(found)
        return self

    def fill_chat(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        content: str | Sequence[Mapping[str, Any]] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
    ) -> Self:
        """Appends chat messages in the model's template: a role and its content, or a list of {"role", "content"}.

        Text generated since the last `fill_chat` becomes the assistant's message before them. Text of messages is never
        read as special tokens. A content with images is a list of parts: {"type": "text", "text": ...} and
        {"type": "image", "image": name of a blob}.
        """
        new = [{"role": messages, "content": content}] if isinstance(messages, str) else list(messages)
        self._conversation.add(self._settled("fill_chat"), new, tools, add_generation_prompt)
        return self

    def truncate(self, length: int) -> Self:
        """Keeps the first `length` tokens."""
        self._settled("truncate").truncate(whole(length, "length"))
        return self

    # ---- model outputs -------------------------------------------------------------------------------------------

    def generate(
        self,
        max_tokens: int | None = None,
        *,
        sampler: AnySampler = _GREEDY,
        stop: StopConditions = None,
        logprobs: int | None = None,
        run_ahead: bool = True,
    ) -> Generation:
        """Continues the text: an asynchronous iterator over its pieces. The context holds each piece when the iterator
        yields it.

        Ends at a stop condition (see `stopping`; the model's stop tokens by default), after `max_tokens`, or when the
        model's context is full. Stop tokens and stop strings are neither emitted nor kept. `logprobs`: a number from 0
        to 32; then `logprobs` of the generation has the log-probability of each token, and of as many alternatives.
        """
        sequence = self._settled("generate")
        room = sequence.info.max_context - len(sequence.tokens)
        limit = room if max_tokens is None else min(whole(max_tokens, "max_tokens"), room)
        rules = StopRules.of(stop, sequence.info.stop_tokens, limit)
        self._generation = Generation(
            sequence, as_sampler(sampler), rules, run_ahead, None if logprobs is None else whole(logprobs, "logprobs")
        )
        return self._generation

    async def generate_until(
        self,
        stop: StopConditions = None,
        max_tokens: int | None = None,
        *,
        sampler: AnySampler = _GREEDY,
        run_ahead: bool = True,
    ) -> str:
        """The whole continuation as one string; see `generate`. The program sleeps until the end, unless a regular
        expression, a function or its own sampler has to look at each token."""
        return await self.generate(max_tokens, sampler=sampler, stop=stop, run_ahead=run_ahead).whole()

    async def sample(self, sampler: AnySampler = _GREEDY) -> int:
        """Samples the next token without appending it; `ctx.fill([token])` appends it."""
        return await sample_once(self._settled("sample"), as_sampler(sampler))

    async def next_dist(self, k: int = 256, temperature: float = 1.0) -> Dist:
        """The distribution of the next token, cut to the `k` most probable tokens."""
        return await self._settled("next_dist").next_dist(k, temperature)

    async def score(self, continuation: str | Sequence[int]) -> list[float]:
        """Log-probability of each token of a continuation, without appending it."""
        sequence = self._settled("score")
        if isinstance(continuation, str):
            return await score_tokens(sequence, sequence.tokenize(continuation))
        return await score_tokens(sequence, numbers(continuation, "continuation", "a token id"))

    async def flush(self) -> None:
        """Runs the filled text and waits until that is done. Otherwise the next call that needs an output runs it."""
        sequence = self._settled("flush")
        with sequence as queue:
            sequence.flush()
            await traits.synchronize(queue)

    # ---- life cycle ----------------------------------------------------------------------------------------------

    def fork(self) -> Context:
        """A context with the same text. Both share full pages, so a fork is cheap; thousands may live at once.

        Close parent and child in any order.
        """
        child = Context.__new__(Context)
        child._start(self._settled("fork").fork())
        child._conversation = self._conversation.copy()
        return child

    def close(self) -> None:
        """Frees what it holds, and ends a generation. Idempotent; any other use afterwards raises InvalidState."""
        if self._sequence.closed:
            return
        self._end_generation()
        self._sequence.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _open(self, operation: str) -> None:
        """Ends a generation that is under way, but not one for which another task waits."""
        self._check_open()
        if self._generation is not None and self._generation.is_waiting:
            raise InvalidState(
                f"`{operation}` cannot begin while a `generate` of the same context waits for a token "
                f"({len(self._generation.tokens)} so far) in another task: await that first, or fork the context"
            )
        self._end_generation()

    def _check_open(self) -> None:
        if self._sequence.closed:
            raise InvalidState("the context is closed: make a new one, or fork before closing")

    def _settled(self, operation: str) -> TokenSequence:
        """The sequence, with all stored text tokenized, for an operation."""
        if self._generation is None and not self._noted and not self._sequence.closed:
            return self._sequence  # as below, at once
        self._open(operation)
        return self._read()

    def _read(self) -> TokenSequence:
        """The same, for reading: a generation goes on."""
        self._check_open()
        if self._noted:
            self._take_noted()
        return self._sequence

    def _take_noted(self) -> None:
        """Tokens of what was filled. What is refused, and all behind it, stays noted: it must not be missing without a
        word."""
        sequence = self._sequence
        while self._noted:
            texts = list(takewhile(lambda one: isinstance(one, _Noted), self._noted))
            if texts:
                sequence.tokens += self._tokenize([one for one in texts if isinstance(one, _Noted)])
            elif isinstance(image := self._noted[0], Image):
                sequence.add_image(image)
            del self._noted[: len(texts) or 1]

    def _tokenize(self, noted: list[_Noted]) -> list[int]:
        """Tokens of texts one behind the other. All are one piece, unless there are special tokens in them and not all
        texts are read alike: then what is plain is tokenized apart.
        """
        text, mode = "".join(one.text for one in noted), noted[0].special_tokens
        tokens = self._sequence.tokenize(text, mode)
        if all(one.special_tokens is mode for one in noted) or tokens == self._sequence.tokenize(text, not mode):
            return tokens
        parts = groupby(noted, lambda one: one.special_tokens)
        runs = [("".join(one.text for one in run), mode) for mode, run in parts]
        return [token for text, mode in runs for token in self._sequence.tokenize(text, mode)]

    def _end_generation(self) -> None:
        if self._generation is not None:
            self._generation.end()
            self._generation = None
