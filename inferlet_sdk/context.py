"""`Context`: a text that a model continues.

It owns KV pages and an embed, and frees them on `close`, when the program drops it, or when the inferlet ends. It has a
queue while it works. `traits` has every call that `Context` lacks; `queue`, `pages` and `tokens` are there to be used
with these calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar, overload

from inferlet_sdk import traits
from inferlet_sdk.addresses import Pages
from inferlet_sdk.errors import InvalidArgument, InvalidState
from inferlet_sdk.generation.conversation import Conversation
from inferlet_sdk.generation.drafting import Draft
from inferlet_sdk.generation.generation import Generation
from inferlet_sdk.generation.joining import join_sequences
from inferlet_sdk.generation.queues import queues_of
from inferlet_sdk.generation.sampling import AnySampler, Greedy, Sampler, as_sampler, seeded
from inferlet_sdk.generation.scoring import score_tokens
from inferlet_sdk.generation.sequence import TokenSequence
from inferlet_sdk.generation.stopping import StopConditions, StopRules
from inferlet_sdk.generation.token_source import sample_once
from inferlet_sdk.images import Image, as_image, take_noted
from inferlet_sdk.schemas.results import generate_value
from inferlet_sdk.search.beam import search
from inferlet_sdk.search.best_of import Judge, sample_many
from inferlet_sdk.search.hypotheses import Hypothesis
from inferlet_sdk.search.select import score_all
from inferlet_sdk.texts import Noted, shown
from inferlet_sdk.traits import Dist
from inferlet_sdk.traits.arguments import flag, numbers, texts, whole
from inferlet_sdk.traits.arguments import text as checked_text
from inferlet_sdk.traits.core import ModelInfo

T = TypeVar("T")

_GREEDY = Greedy()

SHOWN_TOKENS = 32
"""Last tokens that `repr` looks at."""


def _rules(sequence: TokenSequence, stop: StopConditions, max_tokens: int | None) -> StopRules:
    """When a continuation ends: in any case when the model's context is full."""
    room = sequence.info.max_context - sequence.offset - len(sequence.tokens)
    limit = room if max_tokens is None else min(whole(max_tokens, "max_tokens"), room)
    return StopRules.of(stop, sequence.info.stop_tokens, limit)


class Context:
    """A growing text with its KV cache. The default model is the first of `available_models()`. All of it runs with the
    LoRA adapter `adapter`, if one is named (see `traits.available_adapters`).

    Filling is lazy: `fill` only stores the text. The next call that needs an output of the model tokenizes the stored
    text in one piece and runs it in one go.
    """

    def __init__(self, model: str | None = None, *, adapter: str | None = None, position: int = 0) -> None:
        """`position`: of its first token. Contexts that are to be joined may leave room for each other."""
        name = model if model is not None else traits.available_models()[0]
        sequence = TokenSequence(queues_of(name), adapter="" if adapter is None else checked_text(adapter, "adapter"))
        sequence.offset = whole(position, "position")
        self._start(sequence)

    def _start(self, sequence: TokenSequence) -> None:
        self._sequence = sequence
        self._noted: list[Noted | Image] = []
        self._generation: Generation | None = None
        self._conversation = Conversation()

    def __repr__(self) -> str:
        sequence = self._sequence
        if sequence.closed:
            return f"<Context of {sequence.info.name}: closed>"
        state = "idle" if self._generation is None or self._generation.stop_reason else "generating"
        text = sequence.last_text(SHOWN_TOKENS) + "".join(one.text for one in self._noted)
        return f"<Context of {sequence.info.name}: {len(sequence.tokens)} tokens, {state}: {shown(text)}>"

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
            noted = Noted(checked_text(text, "text"), flag(special_tokens, "special_tokens"))
            self._open("fill")
            self._noted.append(noted)
        else:
            self._settled("fill").tokens += numbers(text, "text", "a token id")
        return self

    def fill_image(self, image: str | Image) -> Self:
        """Appends an image that the client has sent, by the name of its blob. It is decoded at the next output."""
        self._open("fill_image")
        self._noted.append(as_image(image))
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
        read as special tokens.
        """
        new = [{"role": messages, "content": content}] if isinstance(messages, str) else list(messages)
        self._conversation.add(self._settled("fill_chat"), new, tools, add_generation_prompt)
        return self

    def truncate(self, length: int) -> Self:
        """Keeps the first `length` tokens. It cannot end among tokens that were dropped."""
        sequence = self._settled("truncate")
        for start, stop in sequence.pages.dropped:
            if start < whole(length, "length") < stop:
                raise InvalidState(f"tokens {start} to {stop} were dropped: truncate to at most {start}, or {stop}")
        sequence.truncate(whole(length, "length"))
        return self

    def drop(self, start: int, stop: int) -> Self:
        """The model does not see the tokens `start` .. `stop` any more. Pages that hold no others are given back.

        They stay in `tokens`, all tokens keep their positions, and keys that were computed stay as they are: tokens
        behind them have seen them. The last token cannot be dropped; it runs again for the next output.
        """
        sequence = self._settled("drop")
        last = len(sequence.tokens) - 1
        if not 0 <= whole(start, "start") <= whole(stop, "stop") <= max(last, 0):
            raise InvalidArgument(
                f"tokens {start} to {stop} cannot be dropped: of {last + 1} tokens all but the last one can"
            )
        if start < stop:
            sequence.drop(start, stop)
        return self

    def window(self, length: int, *, sink: int = 4) -> Self:
        """Drops all but the last `length` tokens, and the first `sink`, to which models attend however far they are
        (Xiao et al. 2023, attention sinks). For long generations, call it again and again."""
        sequence = self._settled("window")
        first, last = whole(sink, "sink"), len(sequence.tokens) - whole(length, "length", least=1)
        return self.drop(first, last) if first < last else self

    # ---- model outputs -------------------------------------------------------------------------------------------

    def generate(
        self,
        max_tokens: int | None = None,
        *,
        sampler: AnySampler = _GREEDY,
        stop: StopConditions = None,
        logprobs: int | None = None,
        draft: Draft | None = None,
        run_ahead: bool = True,
    ) -> Generation:
        """Continues the text: an asynchronous iterator over its pieces. The context holds each piece when the iterator
        yields it.

        Ends at a stop condition (see `stopping`; the model's stop tokens by default), after `max_tokens`, or when the
        model's context is full. Stop tokens and stop strings are neither emitted nor kept. `logprobs`: a number from 0
        to 32; then `logprobs` of the generation has the log-probability of each token, and of as many alternatives.
        `draft`: a function that guesses the next tokens, which the model then checks all at once, such as
        `PromptLookup()`; the text is the same.
        """
        sequence = self._settled("generate")
        alternatives = None if logprobs is None else whole(logprobs, "logprobs")
        rules = _rules(sequence, stop, max_tokens)
        self._generation = Generation(sequence, as_sampler(sampler), rules, run_ahead, alternatives, draft)
        return self._generation

    async def generate_until(
        self,
        stop: StopConditions = None,
        max_tokens: int | None = None,
        *,
        sampler: AnySampler = _GREEDY,
        draft: Draft | None = None,
        run_ahead: bool = True,
    ) -> str:
        """The whole continuation as one string; see `generate`. The program sleeps until the end, unless a regular
        expression, a function or its own sampler has to look at each token."""
        generation = self.generate(max_tokens, sampler=sampler, stop=stop, draft=draft, run_ahead=run_ahead)
        return await generation.whole()

    @overload
    async def generate_as(
        self, kind: type[T], max_tokens: int | None = None, *, sampler: AnySampler = _GREEDY, attempts: int = 3
    ) -> T: ...
    @overload
    async def generate_as(
        self, kind: object, max_tokens: int | None = None, *, sampler: AnySampler = _GREEDY, attempts: int = 3
    ) -> Any: ...
    async def generate_as(
        self, kind: object, max_tokens: int | None = None, *, sampler: AnySampler = _GREEDY, attempts: int = 3
    ) -> Any:
        """A value of a type that the model writes as JSON: an instance of a dataclass, `list[int]`, `Literal["yes",
        "no"]`, or of any other annotation that `json_schema` takes. Afterwards the context holds its text.

        A model with the trait Grammar writes nothing else. One without should be told in the prompt what to write; it
        has `attempts` at it, of which only the last stays. Raises SchemaMismatch, which says where and what is wrong,
        or Truncated if `max_tokens` are not enough; the context then holds what it held before.
        """
        sequence = self._settled("generate_as")
        return await generate_value(sequence, self.generate, kind, max_tokens, sampler, attempts)

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

    async def select(self, options: Sequence[str], *, mean: bool = False) -> str:
        """The most likely of several strings, which it appends. What they begin with together is run once.

        By the probability of all their tokens together, so a longer one has a harder time; with `mean`, by that of a
        token on average.
        """
        sequence, given = self._settled("select"), texts(options, "options")
        if not given:
            raise ValueError("options: there is nothing to select from")
        tokens = [sequence.tokenize(option) for option in given]
        scores = [sum(one) / (max(len(one), 1) if mean else 1) for one in await score_all(sequence, tokens)]
        best = max(range(len(given)), key=scores.__getitem__)
        self._settled("select").tokens += tokens[best]
        return given[best]

    async def best_of(
        self,
        count: int,
        max_tokens: int | None = None,
        *,
        sampler: Sampler | None = None,
        stop: StopConditions = None,
        score: Judge | None = None,
    ) -> list[Hypothesis]:
        """Samples `count` continuations at once, and appends the best one. All of them, the best one first.

        By the mean log-probability of their tokens, or by `score`, a function of the text, which may be an `async def`.
        A `seed` of the sampler is that of the first one; the others have the next ones.
        """
        sequence = self._settled("best_of")
        samplers = seeded(sampler or Sampler(), whole(count, "count", least=1))
        found = await sample_many(sequence, samplers, _rules(sequence, stop, max_tokens), score)
        found.sort(key=lambda one: one[0].score, reverse=True)
        return self._take_best([one for one, _ in found], [branch for _, branch in found])

    async def beam(self, width: int, max_tokens: int, *, stop: Sequence[int] | None = None) -> list[Hypothesis]:
        """The most likely continuations by beam search, the best one first, at most `width`. Appends the best one.

        `stop`: tokens that end a continuation; by default those of the model.
        """
        sequence = self._settled("beam")
        ends = sequence.info.stop_tokens if stop is None else numbers(stop, "stop", "a token id")
        length = _rules(sequence, None, whole(max_tokens, "max_tokens")).max_tokens
        beams = await search(sequence, whole(width, "width", least=1), length, frozenset(ends))
        found = [beam.hypothesis(len(sequence.tokens)) for beam in beams]
        return self._take_best(found, [beam.branch for beam in beams])

    def _take_best(self, found: list[Hypothesis], branches: list[TokenSequence]) -> list[Hypothesis]:
        """Goes on as the first of these branches, and closes the others."""
        best, *others = branches
        for branch in others:
            branch.close()
        if self._sequence.has_own_queue:  # whose number the program knows
            self._settled("append").tokens += found[0].tokens
            best.close()
        else:
            self._settled("append").close()
            self._sequence = best
        return found

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

    @classmethod
    def join(cls, parts: Sequence[Context]) -> Context:
        """A context with the texts of all parts behind each other, without running them again: modular caching.

        Each part keeps what it has computed, alone and at its own positions (see `Context(position=)`); what comes sees
        all of them. The parts stay as they are.
        """
        sequences = [part._settled("join") for part in parts]
        joined = cls.__new__(cls)
        joined._start(join_sequences(sequences))
        return joined

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
        take_noted(self._noted, self._sequence)
        return self._sequence

    def _end_generation(self) -> None:
        if self._generation is not None:
            self._generation.end()
            self._generation = None
