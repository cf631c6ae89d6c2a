"""`Context`: a text that a model continues.

It owns a queue, KV pages and embeds, and frees them on `close` or when the inferlet ends. `traits` has every call that
`Context` lacks; `queue`, `pages` and `tokens` are there to be used with these calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Self

from inferlet_sdk import traits
from inferlet_sdk.addresses import Pages
from inferlet_sdk.errors import InvalidState
from inferlet_sdk.generation.conversation import Conversation
from inferlet_sdk.generation.generation import Generation
from inferlet_sdk.generation.sampling import AnySampler, Greedy, as_sampler
from inferlet_sdk.generation.scoring import score_tokens
from inferlet_sdk.generation.sequence import TokenSequence
from inferlet_sdk.generation.stopping import StopConditions, StopRules
from inferlet_sdk.generation.token_source import token_source
from inferlet_sdk.traits import Dist
from inferlet_sdk.traits.core import ModelInfo

_GREEDY = Greedy()


@lru_cache(maxsize=64)
def _model_info(model: str) -> ModelInfo:
    return traits.get_model_info(model)


class Context:
    """A growing text with its KV cache. The default model is the first of `available_models()`.

    Filling is lazy: `fill` only stores the text. The next call that needs an output of the model tokenizes the stored
    text in one piece and runs it in one go.
    """

    def __init__(self, model: str | None = None) -> None:
        name = model if model is not None else traits.available_models()[0]
        self._start(TokenSequence(_model_info(name)))

    def _start(self, sequence: TokenSequence) -> None:
        self._sequence = sequence
        self._noted: list[str] = []
        self._generation: Generation | None = None
        self._conversation = Conversation()

    # ---- what it holds -------------------------------------------------------------------------------------------

    @property
    def model(self) -> ModelInfo:
        """The model's page size, limits and stop tokens."""
        return self._sequence.info

    @property
    def queue(self) -> int:
        """Its command queue, for the calls of `traits`."""
        return self._sequence.queue

    @property
    def pages(self) -> Pages:
        """Its KV pages."""
        return self._sequence.pages.pages

    @property
    def tokens(self) -> tuple[int, ...]:
        """All tokens, filled and generated."""
        return tuple(self._settled().tokens)

    @property
    def text(self) -> str:
        """Text of all tokens, without special tokens."""
        return traits.detokenize(self.queue, self._settled().tokens)

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self._settled().tokens)

    # ---- filling -------------------------------------------------------------------------------------------------

    def fill(self, text: str | Iterable[int]) -> Self:
        """Appends text or tokens. Special tokens in the text are recognized; none are added."""
        if isinstance(text, str):
            self._open()
            self._noted.append(text)
        else:
            self._settled().tokens += text
        return self

    def fill_chat(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        content: str | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
    ) -> Self:
        """Appends chat messages in the model's template: a role and its content, or a list of {"role", "content"}.

        Text generated since the last `fill_chat` becomes the assistant's message before them.
        """
        new = [{"role": messages, "content": content}] if isinstance(messages, str) else list(messages)
        self._conversation.add(self._settled(), new, tools, add_generation_prompt)
        return self

    def truncate(self, length: int) -> Self:
        """Keeps the first `length` tokens."""
        self._settled().truncate(length)
        return self

    # ---- model outputs -------------------------------------------------------------------------------------------

    def generate(
        self,
        max_tokens: int | None = None,
        *,
        sampler: AnySampler = _GREEDY,
        stop: StopConditions = None,
        run_ahead: bool = True,
    ) -> Generation:
        """Continues the text: an asynchronous iterator over its pieces. The context holds each piece when the iterator
        yields it.

        Ends at a stop condition (see `stopping`; the model's stop tokens by default), after `max_tokens`, or when the
        model's context is full. Stop tokens and stop strings are neither emitted nor kept.
        """
        sequence = self._settled()
        room = sequence.info.max_context - len(sequence.tokens)
        limit = room if max_tokens is None else min(max_tokens, room)
        rules = StopRules.of(stop, sequence.info.stop_tokens, limit)
        self._generation = Generation(sequence, as_sampler(sampler), rules, run_ahead)
        return self._generation

    async def generate_until(
        self,
        stop: StopConditions = None,
        max_tokens: int | None = None,
        *,
        sampler: AnySampler = _GREEDY,
        run_ahead: bool = True,
    ) -> str:
        """The whole continuation as one string; see `generate`."""
        pieces = self.generate(max_tokens, sampler=sampler, stop=stop, run_ahead=run_ahead)
        return "".join([piece async for piece in pieces])

    async def sample(self, sampler: AnySampler = _GREEDY) -> int:
        """Samples the next token without appending it; `ctx.fill([token])` appends it."""
        sequence = self._settled()
        detokenizer = traits.create_detokenizer(sequence.queue)
        source = token_source(sequence, as_sampler(sampler), detokenizer, run_ahead=False)
        try:
            token, _ = await source.next(False)
            return token
        finally:
            source.close()
            traits.destroy_detokenizer(detokenizer)

    async def next_dist(self, k: int = 256, temperature: float = 1.0) -> Dist:
        """The distribution of the next token, cut to the `k` most probable tokens."""
        sequence = self._settled()
        sequence.flush()
        return await traits.get_next_dist(sequence.queue, sequence.output_embed, k, temperature)

    async def score(self, continuation: str | Sequence[int]) -> list[float]:
        """Log-probability of each token of a continuation, without appending it."""
        sequence = self._settled()
        tokens = traits.tokenize(self.queue, continuation) if isinstance(continuation, str) else continuation
        return await score_tokens(sequence, tokens)

    async def flush(self) -> None:
        """Runs the filled text and waits until that is done. Otherwise the next call that needs an output runs it."""
        self._settled().flush()
        await traits.synchronize(self.queue)

    # ---- life cycle ----------------------------------------------------------------------------------------------

    def fork(self) -> Context:
        """A context with the same text and its own queue. Both share full pages, so a fork is cheap.

        Close parent and child in any order.
        """
        child = Context.__new__(Context)
        child._start(self._settled().fork())
        child._conversation = self._conversation.copy()
        return child

    def close(self) -> None:
        """Frees queue, pages and embeds. Idempotent; any other use afterwards raises InvalidState."""
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

    def _open(self) -> TokenSequence:
        """The sequence. Ends a generation that is under way."""
        if self._sequence.closed:
            raise InvalidState("the context is closed: make a new one, or fork before closing")
        self._end_generation()
        return self._sequence

    def _settled(self) -> TokenSequence:
        """The sequence, with all stored text tokenized."""
        sequence = self._open()
        if self._noted:
            text, self._noted = "".join(self._noted), []
            sequence.tokens += traits.tokenize(sequence.queue, text)
        return sequence

    def _end_generation(self) -> None:
        if self._generation is not None:
            self._generation.end()
            self._generation = None
