"""`Context`: a text that a model continues.

It owns KV pages and an embed, and frees them on `close`, when the program drops it, or when the inferlet ends. It has a
queue while it works. `traits` has every call that `Context` lacks; `queue`, `pages` and `tokens` are there to be used
with these calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar, Unpack, overload

from inferlet_sdk import traits
from inferlet_sdk.errors import NotFound
from inferlet_sdk.filling.filled_context import FilledContext
from inferlet_sdk.filling.snapshots import restore, snapshot_of
from inferlet_sdk.generation.drafting import Draft
from inferlet_sdk.generation.generation import Generation, rules_of
from inferlet_sdk.generation.kept import Kept, as_guide
from inferlet_sdk.generation.sampling import GREEDY, AnySampler, Sampler, as_sampler, seeded
from inferlet_sdk.generation.scoring import score_listed, score_tokens
from inferlet_sdk.generation.stopping import StopConditions
from inferlet_sdk.generation.token_source import sample_once
from inferlet_sdk.schemas.results import generate_value
from inferlet_sdk.search.beam import search
from inferlet_sdk.search.best_of import MOST_SAMPLES, Judge, sample_many
from inferlet_sdk.search.hypotheses import Found, Hypothesis, check_count, keep_best
from inferlet_sdk.search.select import most_likely
from inferlet_sdk.sequences.joining import join_sequences
from inferlet_sdk.sequences.queues import queues_of
from inferlet_sdk.sequences.sequence import TokenSequence
from inferlet_sdk.sequences.stepping import next_dist
from inferlet_sdk.sharing.named import export, open_sequence
from inferlet_sdk.sharing.prefixes import keep_pages, pin_pages, share_prefix
from inferlet_sdk.tools.declaring import AnyTool
from inferlet_sdk.traits import Dist
from inferlet_sdk.traits.arguments import flag, numbers, texts, whole, wrong
from inferlet_sdk.traits.arguments import text as checked_text
from inferlet_sdk.traits.runs import TokenLogprobs

T = TypeVar("T")


class Context(FilledContext):
    """A growing text with its KV cache. The default model is the first of `available_models()`. All of it runs with the
    LoRA adapter `adapter`, if one is named (see `traits.available_adapters`).

    Filling is lazy: `fill` only stores the text. The next call that needs an output of the model tokenizes the stored
    text in one piece and runs it in one go.
    """

    def __init__(
        self, model: str | None = None, *, adapter: str | None = None, position: int = 0, share: bool | str = True
    ) -> None:
        """`position`: of its first token. Contexts that are to be joined at these positions share their pages. `share`:
        whether the keys of a long prompt are shared with inferlets of the same user that have a prompt which begins
        alike; a text: with those that give the same text.
        """
        name = model if model is not None else traits.available_models()[0]
        sequence = TokenSequence(queues_of(name), adapter="" if adapter is None else checked_text(adapter, "adapter"))
        sequence.offset = whole(position, "position")
        sequence.shares = bool(share) if isinstance(share, str) else flag(share, "share")
        sequence.shared_with = share if isinstance(share, str) else ""
        self._start(sequence)

    # ---- model outputs -------------------------------------------------------------------------------------------

    def generate(
        self,
        max_tokens: int | None = None,
        *,
        sampler: AnySampler = GREEDY,
        stop: StopConditions = None,
        logprobs: int | None = None,
        draft: Draft | None = None,
        run_ahead: bool = True,
        include_stop: bool = False,
        **kept: Unpack[Kept],
    ) -> Generation:
        """Continues the text: an asynchronous iterator over its pieces. The context holds each piece when the iterator
        yields it.

        Ends at a stop condition (see `stopping`; the model's stop tokens by default), after `max_tokens`, or when the
        model's context is full. The stop token or stop string is neither emitted nor kept; with `include_stop` it is
        both. `logprobs`: a number from 0 to 32; then `logprobs` of the generation has those of each token, and of as
        many alternatives. `draft`: guesses the next tokens, such as `PromptLookup()`; the text is the same. `schema`,
        `regex`, `grammar`: see `Kept`.
        """
        guide, sequence = as_guide(kept, as_sampler(sampler), logprobs), self._settled("generate")
        alternatives = None if logprobs is None else whole(logprobs, "logprobs")
        rules = rules_of(sequence, stop, max_tokens, include_stop)
        self._generation = Generation(sequence, as_sampler(sampler), rules, run_ahead, alternatives, draft, guide)
        return self._generation

    async def generate_until(
        self,
        stop: StopConditions = None,
        max_tokens: int | None = None,
        *,
        sampler: AnySampler = GREEDY,
        draft: Draft | None = None,
        run_ahead: bool = True,
        include_stop: bool = False,
        **kept: Unpack[Kept],
    ) -> str:
        """The whole continuation (see `generate`) at once. The program sleeps unless it has to look at each token."""
        options: Any = {"draft": draft, "run_ahead": run_ahead, "include_stop": include_stop, **kept}
        return await self.generate(max_tokens, sampler=sampler, stop=stop, **options).whole()

    @overload
    async def generate_as(
        self, kind: type[T], max_tokens: int | None = None, *, sampler: AnySampler = GREEDY, attempts: int = 3
    ) -> T: ...
    @overload
    async def generate_as(
        self, kind: object, max_tokens: int | None = None, *, sampler: AnySampler = GREEDY, attempts: int = 3
    ) -> Any: ...
    async def generate_as(
        self, kind: object, max_tokens: int | None = None, *, sampler: AnySampler = GREEDY, attempts: int = 3
    ) -> Any:
        """A value of a type that the model writes as JSON: an instance of a dataclass, `list[int]`, `Literal["yes",
        "no"]`, or of any other annotation that `json_schema` takes. Afterwards the context holds its text.

        A model with the trait Grammar writes nothing else. Another one should be told in the prompt what to write. A
        value that does not fit, also by a check of the type itself, is written again: there are `attempts` in all.
        Raises SchemaMismatch, which says where, or Truncated. After any error the context is as before.
        """
        sequence = self._settled("generate_as")
        return await generate_value(sequence, self.generate, kind, max_tokens, sampler, attempts)

    async def sample(self, sampler: AnySampler = GREEDY) -> int:
        """Samples the next token without appending it; `ctx.fill([token])` appends it."""
        return await sample_once(await self._ready("sample"), as_sampler(sampler))

    async def next_dist(self, k: int = 256, temperature: float = 1.0) -> Dist:
        """The distribution of the next token, cut to the `k` most probable tokens."""
        sequence = self._settled("next_dist")
        if not sequence.computed:
            await share_prefix(sequence)
        return await next_dist(sequence, k, temperature)

    @overload
    async def score(self, continuation: str | Sequence[int]) -> list[float]: ...
    @overload
    async def score(self, continuation: str | Sequence[int], *, alternatives: int) -> list[TokenLogprobs]: ...
    async def score(self, continuation: str | Sequence[int], *, alternatives: int | None = None) -> Any:
        """Log-probability of each token of a continuation, without appending it. `alternatives`: with those of as many
        tokens that are the most probable in its place."""
        sequence = await self._ready("score")
        if isinstance(continuation, str):
            tokens: Sequence[int] = sequence.tokenize(continuation)
        else:
            tokens = numbers(continuation, "continuation", "a token id")
        if alternatives is None:
            return await score_tokens(sequence, tokens)
        return await score_listed(sequence, tokens, whole(alternatives, "alternatives"))

    async def select(self, options: Sequence[str], *, mean: bool = False) -> str:
        """The most likely of several strings, which it appends. What they begin with together is run once.

        By the probability of all their tokens together, so a longer one has a harder time; with `mean`, by that of a
        token on average.
        """
        chosen, tokens = await most_likely(await self._ready("select"), texts(options, "options"), mean)
        self._settled("select").tokens += tokens
        return chosen

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
        sequence = await self._ready("best_of")
        rules = rules_of(sequence, stop, max_tokens)
        check_count(whole(count, "count", least=1, most=MOST_SAMPLES), rules.max_tokens, "count")
        return self._take_best(await sample_many(sequence, seeded(sampler or Sampler(), count), rules, score))

    async def beam(self, width: int, max_tokens: int, *, stop: Sequence[int] | None = None) -> list[Hypothesis]:
        """The most likely continuations by beam search, the best one first, at most `width`. Appends the best one.

        `stop`: tokens that end a continuation; by default those of the model.
        """
        sequence = await self._ready("beam")
        ends = sequence.info.stop_tokens if stop is None else numbers(stop, "stop", "a token id")
        length = rules_of(sequence, None, whole(max_tokens, "max_tokens")).max_tokens
        check_count(whole(width, "width", least=1), length, "width")
        return self._take_best(await search(sequence, width, length, frozenset(ends)))

    def _take_best(self, found: list[Found]) -> list[Hypothesis]:
        """Goes on with the best one."""
        self._sequence = keep_best(self._settled("append"), found)
        return [one.hypothesis for one in found]

    async def flush(self) -> None:
        """Runs the filled text and waits until that is done. Otherwise the next call that needs an output runs it."""
        sequence = await self._ready("flush")
        with sequence as queue:
            sequence.flush()
            await traits.synchronize(queue)

    # ---- for others ----------------------------------------------------------------------------------------------

    def keep(self) -> None:
        """Shares the keys of what it holds, generated text included, as those of long prompts are: a context that is
        filled with the same tokens does not compute them again. They are there, in whole pages, as long as memory is
        not needed for something else. What has not run yet runs, but for the last token. Nothing is waited for: if the
        inferlet ends before that, no keys are shared. Short texts are left alone, and so is what was joined or opened.

        At a model that keeps a state of each text, the state is kept here, too, until the context is cut before it or
        closed: `truncate` to this length, and what is filled then, runs nothing again. Others go on from the last token
        that has run: all of them, or all but the last one that was generated."""
        sequence = self._settled("keep")
        keep_pages(sequence)
        sequence.keep_end()

    async def pin(self, seconds: int, count: int | None = None) -> int:
        """Does as `keep`, and the keys of its first `count` tokens, or of all, stay for some seconds, at most a day,
        even when memory is short. Of a long prompt that has not run, what others have is looked for first. Returns how
        many of these tokens stay: none of a text that `keep` leaves alone, and fewer than all if the tenant would have
        pinned more than a quarter of the memory that it may use."""
        sequence = await self._ready("pin")
        return await pin_pages(sequence, seconds, len(sequence.tokens) if count is None else whole(count, "count"))

    async def export(self, name: str, *, lease: int = 0) -> bool:
        """Keeps its tokens and keys under a name, for `Context.open` in any inferlet of the same user, after this one
        has ended, too: as long as memory is not needed for something else. An older export of this name makes room.
        `lease`: for so many seconds, at most a day, it stays even then; whether it does, for a tenant may pin only a
        quarter of the memory that it may use."""
        return await export(await self._ready("export"), name, whole(lease, "lease"))

    @classmethod
    async def open(
        cls,
        name: str,
        model: str | None = None,
        *,
        adapter: str | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
        tools: Iterable[AnyTool] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> Self:
        """A context with what was exported under a name; if nothing is filled behind it, the last token runs again for
        its output. Raises NotFound if there is none: then fill a new one. `adapter`: that with which it was made;
        InvalidState names it if it is another one. `keep` shares nothing of it: it may have been joined.

        An export has tokens, and no messages. `messages`, with `tools` and `variables`, are those of the chat with
        which it begins, as `fill_chat` took them, and `fill_chat` goes on behind them; NotFound if it does not begin
        so. Without them `fill_chat` begins another chat behind all of its text.
        """
        queues = queues_of(model if model is not None else traits.available_models()[0])
        context = cls.__new__(cls)
        context._start(await open_sequence(queues, "" if adapter is None else checked_text(adapter, "adapter"), name))
        held, found = context._conversation, context._sequence
        try:
            if messages is not None and not held.begun(found, messages, tools, variables):
                raise NotFound(f"export {name!r} does not begin with these messages: fill a new context, and export it")
        except BaseException:
            context.close()
            raise
        return context

    def snapshot(self) -> str:
        """Its tokens and messages as JSON text, from which `Context.restore` makes a context like it: after the
        inferlet has ended, or its worker was lost. Send it to the client, and take it back as an argument. Keys are not
        in it: they are computed again, or shared with inferlets that have them. A generation goes on."""
        return snapshot_of(self._read(), self._conversation)

    @classmethod
    def restore(cls, snapshot: str) -> Self:
        """A context from what `snapshot` has made. Raises NotFound if its model, its adapter or an image that the
        client has to send is not there."""
        context = cls.__new__(cls)
        sequence, conversation = restore(snapshot)
        context._start(sequence)
        context._conversation = conversation
        return context

    # ---- life cycle ----------------------------------------------------------------------------------------------

    def fork(self) -> Context:
        """A context with the same text. Both share full pages, so a fork is cheap; thousands may live at once.

        Text that has not run yet runs first, and keys that others have are not looked for, nor are these offered: of a
        long prompt that others may have, `await ctx.flush()` first. Close parent and child in any order.
        """
        child = Context.__new__(Context)
        child._start(self._settled("fork").fork())
        child._conversation = self._conversation.copy()
        return child

    def restarted(self, last: int) -> Context:
        """A context with the last `last` tokens of this one, which run anew, at positions from 0 on. So a text goes on
        that has reached the model's last position. It sees nothing before these tokens, and no chat has begun in it.
        Images among them are seen again; it cannot begin within one.
        """
        sequence = self._settled("restarted")
        start = max(len(sequence.tokens) - whole(last, "last", least=1), 0)
        tokens, share = sequence.tokens[start:], sequence.shared_with or sequence.shares
        sequence.images.check_seen(self.model, tokens, start)
        images = sequence.images.behind(start)
        found = Context(self.model.name, adapter=sequence.adapter or None, share=share).fill(tokens)
        found._sequence.images.places = images
        return found

    @classmethod
    def join(cls, parts: Sequence[Context]) -> Context:
        """A context with the texts of all parts behind each other, without running them again: modular caching.

        Each part keeps what it has computed alone; what comes sees all of them. A part that begins behind those before
        it (`Context(position=)`) stays there; any other is moved behind them, so parts may come in any order. With a
        model that cannot move tokens all stay where they are. Tokens that were dropped are left out. The parts
        themselves stay as they are. Its keys are not shared: a prompt of the same tokens has others.
        """
        if not isinstance(parts, Iterable):
            raise wrong("parts", "a list of contexts", parts)
        sequences = []
        for place, part in enumerate(parts):
            if not isinstance(part, Context):
                raise wrong(f"parts[{place}]", "a Context", part)
            sequences.append(part._settled("join"))
        joined = cls.__new__(cls)
        joined._start(join_sequences(sequences))
        return joined

    async def _ready(self, operation: str) -> TokenSequence:
        """The sequence, settled, with the keys of a long prompt that other inferlets have."""
        sequence = self._settled(operation)
        await share_prefix(sequence)
        return sequence
