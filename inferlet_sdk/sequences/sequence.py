"""A token sequence and its KV cache: the engine under `Context`.

`tokens` are the tokens of the sequence. The KV cache holds keys and values of the first `computed` tokens; the others
are pending and run together at the next `flush`. The output embed holds the last hidden state of token `output_of - 1`,
which is the one needed while `output_of == len(tokens)`. During run-ahead `computed` exceeds `len(tokens)`; `rewind`
drops the excess. Token n is at position `offset` + n if nothing behind it was dropped, as is every token that will run.

A sequence has a queue while it is `working`, and an output embed from its first output on, which it shares with those
that are forked from it until it writes another output. If the program drops it without closing it, `give_back` closes
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inferlet_sdk import traits
from inferlet_sdk.addresses import Embeds, Pages
from inferlet_sdk.dropped import drop, give_back
from inferlet_sdk.errors import InvalidState
from inferlet_sdk.images import Image, Seen, SeenImages
from inferlet_sdk.sequences.dropping import check_output, ends_dropped
from inferlet_sdk.sequences.last_step import LastStep
from inferlet_sdk.sequences.output_embed import OutputEmbed
from inferlet_sdk.sequences.page_table import PageTable
from inferlet_sdk.sequences.queues import DESTROYED, KEPT_INPUTS, Queue, Queues
from inferlet_sdk.sequences.states.kept import KeptStates, check_states
from inferlet_sdk.texts import common_length
from inferlet_sdk.traits.arguments import room
from inferlet_sdk.traits.forwarding import run

MAX_CHUNK = 2048
"""Most tokens in one `forward`, which bounds the embeds that a long prompt needs. An `embed_txt` and the `forward`
after it go in one wave, and the scheduler splits what exceeds its batches, so a chunk takes as few waves as the worker
allows.
"""
LEAST_CHUNK = 32
"""A longer prompt is not run with fewer embeds than this: it would take very many calls."""

MOST_LISTED = 1 << 17
"""Tokens that one call takes."""
LEAST_SHARED = 256
"""Least tokens of a prompt that may be shared: what is shorter runs faster than it is found."""
SHOWN_TOKENS = 32
"""The text of the last ones tells people what a context is about."""


class TokenSequence:
    """Tokens, pages and output embed of one context, and its queue while it works: `with sequence as queue` works, and
    `queue` is the number of its queue."""

    closed = True  # until it is made

    def __init__(self, queues: Queues, parent: TokenSequence | None = None, adapter: str = "") -> None:
        give_back()
        self.adapter: str = adapter if parent is None else parent.adapter
        self.info = queues.info
        self.queues = queues
        self.tokens: list[int] = []
        self.images = SeenImages()
        self.offset = 0
        self.shares = True  # whether other inferlets of the tenant may use keys of its prompt
        self.shared_with = ""  # those alone that give the same text
        self.found = 0  # tokens at its beginning whose keys others had
        self.half = -1  # so many tokens there were when a generation ended, maybe within a character
        self.ends: list[int] = []  # of the first parts of its prompt, in tokens; others may go on from there
        self.computed = 0
        self.output_of = 0
        self.drafted: int | None = None  # where the last draft began, as long as its states are there
        self.pages: PageTable = PageTable(queues)
        self.states: KeptStates = KeptStates(self.pages)
        # What was dropped, how many tokens had keys then, and by how many positions those behind it moved up; or a gap.
        self.drops: list[tuple[int, int, int, int]] = []
        self.output: OutputEmbed = OutputEmbed()
        self.last_step: LastStep | None = None  # that gave a distribution
        self.last_queue: Queue | None = None  # at the first use, and from then on
        self._own: Queue | None = None
        self.uses = 0  # calls of `begin` that were not ended
        queues.join()
        self.closed = False
        if parent is not None:
            self._inherit(parent)

    def __del__(self) -> None:
        if not self.closed:
            drop(self, self.queues.host)

    # ---- queues ----

    def begin(self) -> None:
        """Begins to work: `queue` is a queue until as many calls of `end`."""
        if self.uses == 0:
            queue = self.last_queue
            if queue is not None and queue.users == 0:  # nobody has taken it since: as `take` does, at once
                queue.users = 1
            else:
                give_back()
                self.last_queue = self._own or self.queues.take(queue)
        self.uses += 1

    def end(self) -> None:
        """Ends what `begin` began."""
        if self.closed:
            return
        self.uses -= 1
        if self.uses == 0 and self.last_queue is not self._own:
            self.queues.give(self.last_queue)

    def __enter__(self) -> int:
        self.begin()
        return self.busy_queue.number

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def queue(self) -> int:
        """The number of the queue with which it works."""
        assert self.uses, "the sequence does not work"
        assert self.last_queue is not None
        return self.last_queue.number

    @property
    def busy_queue(self) -> Queue:
        """The queue with which it works, with its embeds."""
        assert self.last_queue is not None
        return self.last_queue

    @property
    def has_queue_alone(self) -> bool:
        """Whether nobody else uses its queue: neither another context, nor the program itself."""
        return self._own is None and self.busy_queue.users == 1

    @property
    def has_own_queue(self) -> bool:
        """Whether its queue is never anybody else's."""
        return self._own is not None

    def own_queue(self) -> int:
        """A queue of its own from now on, which the program may use too."""
        if self.closed:
            raise InvalidState("the context is closed and has no queue any more")
        if self._own is None and self.uses == 0:
            self._own = self.last_queue = self.queues.own()
        elif self._own is None and self.last_queue is not None and self.queues.try_part_with(self.last_queue):
            self._own = self.last_queue
        return self._own.number if self._own is not None else self.queue

    # ---- life ----

    def _inherit(self, parent: TokenSequence) -> None:
        """Takes over all that the parent has computed."""
        self.tokens, self.images, self.offset = parent.tokens.copy(), parent.images.copy(), parent.offset
        self.computed, self.output_of, self.drops = parent.computed, parent.output_of, parent.drops.copy()
        self.ends, self.half = parent.ends.copy(), parent.half
        self.found, self.shares, self.shared_with = parent.found, parent.shares, parent.shared_with
        parent.pages.fork_to(self.pages, self.computed)
        if self.tokens:
            parent.output.share_with(self.output)
            parent.states.share_with(self.states)

    def fork(self) -> TokenSequence:
        """A sequence with the same tokens. Runs pending tokens first, so that they are computed once for both."""
        with self:
            if self.tokens and not ends_dropped(self.pages.dropped, len(self.tokens)):
                self.flush()
                if self.computed % self.info.page_size == 0:
                    self.keep_state()
            return TokenSequence(self.queues, self)

    def own_pages(self) -> Pages:
        """All pages, after which the last one is nobody else's."""
        if not self.closed:
            with self as queue:
                self.pages.own_end(queue)
        return self.pages.pages

    def take_output(self, embed: Embeds) -> None:
        """Owns this embed from now on, which has the output of the last token. The sequence must be working."""
        self.output.replace(self.queue, embed)
        self.output_of = self.computed

    def own_output(self) -> int:
        """The address of the output embed, after `flush`, which is nobody else's from now on. The sequence must be
        working."""
        self.output.take(self.busy_queue, keep=True)
        return self.output.own[0]

    def close(self) -> None:
        """Frees pages and output embed. Idempotent."""
        if self.closed:
            return
        queue = self.last_queue
        if queue is None or queue.users == DESTROYED:
            with self.queues.some() as number:
                self._release(number)
        else:
            if self.uses and queue is not self._own:
                self.queues.give(queue)
            if queue.users == 0:
                self.output.leave_to(queue)
            self._release(queue.number)
        if self._own is not None:
            self._own.destroy()
        self.queues.leave(queue)

    def _release(self, queue: int) -> None:
        self.closed = True
        self.pages.close(queue)
        self.output.release(queue)
        self.states.close(queue)

    # ---- running ----

    def flush(self) -> None:
        """Runs all pending tokens; the output embed then belongs to the last one. The sequence must be working."""
        if self.pending():
            self.compute(len(self.tokens), self.output.own)
            self.output_of = self.computed

    def pending(self) -> int:
        """Number of tokens that have to run for the output of the last one. Raises TooLong if the model does not take
        so many."""
        if not self.tokens:
            raise InvalidState("the context is empty: `fill` it before generating")
        if self.output_of == len(self.tokens) == self.computed:
            return 0
        room(self.offset + len(self.tokens), self.info.max_context, self.info.name)
        self.rewind_last()
        if not self.output.own:
            self.output.take(self.busy_queue)
        return len(self.tokens) - self.computed

    @property
    def output_embed(self) -> int:
        """The address of the output embed, after `flush`. Only for reading."""
        return self.output.address

    def compute(self, end: int, output_embeds: Sequence[int]) -> None:
        """Runs pending tokens up to `end`; the last outputs go to `output_embeds` (ranges)."""
        if 0 < end - self.computed <= KEPT_INPUTS:
            assert self.last_queue is not None
            inputs = self.last_queue.inputs(end - self.computed)
            self.run(self.tokens[self.computed : end], inputs, Embeds(output_embeds))
        while self.computed < end:
            inputs = self.queues.alloc_embeds(self.queue, min(end - self.computed, MAX_CHUNK), LEAST_CHUNK)
            stop = self.computed + len(inputs)
            try:
                self.run(self.tokens[self.computed : stop], inputs, Embeds(output_embeds if stop == end else ()))
            finally:
                traits.dealloc_emb(self.queue, inputs)

    def run(self, tokens: Sequence[int], inputs: Embeds, outputs: Embeds, *, draft: bool = False) -> None:
        """Runs tokens and appends their keys and values. `draft`: some may not stay, so at a model with states each
        leaves one."""
        queue, pages, start = self.queue, self.pages, self.computed
        stop = start + len(tokens)
        pages.reserve(queue, stop)
        self.images.check_seen(self.info, tokens, start)
        leaves_states = draft and self.info.state_pages > 0
        filling: tuple[list[int], list[int]] = [], []
        if self.images.after(start) or leaves_states:
            self.images.embed(queue, self.info, tokens, start, self.offset, inputs)
        else:
            filling = list(tokens), list(range(start + self.offset, stop + self.offset))
        if leaves_states:
            traits.forward_draft(queue, pages.pages, inputs, Pages(pages.output), outputs, adapter=self.adapter)
            self.drafted = start
        else:
            lists = pages.context, list(inputs.ranges), pages.output, list(outputs.ranges)
            run(queue, *lists, *filling, adapter=self.adapter)
        self.computed = stop

    def rewind_last(self) -> None:
        """Drops keys and values of the last token, which runs again for its output. Raises InvalidState if the token
        was dropped."""
        check_output(self.pages.dropped, len(self.tokens))
        self.rewind(len(self.tokens) - 1)

    def rewind(self, length: int) -> None:
        """Drops keys and values after the first `length` tokens; at a model with states, after the last one of them
        where a state is."""
        if self.computed > length:
            with self as queue:
                if self.info.state_pages:
                    length = traits.find_state(queue, self.pages.pages, length)
                self.pages.cut(queue, length)
                self.computed, self.last_step = length, None
                self.output_of = length if self.states.cut(queue, length, self.output) else 0

    def keep_state(self) -> None:
        """Keeps the state behind the tokens that have keys, if the model has states. The sequence must be working."""
        if self.info.state_pages and self.computed:
            self.states.keep(self.queue, self.computed, self.output if self.output_of == self.computed else None)

    def hold_state(self) -> None:
        """Keeps the state behind the tokens that have keys until the next time, so that what comes can be dropped, if
        the model has states. The sequence must be working."""
        if self.info.state_pages and self.computed:
            self.states.hold(self.queue, self.computed, self.output if self.output_of == self.computed else None)

    def let_go_drafted(self) -> None:
        """States that the last draft has left are given back, but for the one from which the last token runs, and the
        one with which it began: `truncate` goes back to that until something runs behind it."""
        if self.drafted is not None and not self.closed:
            if self.output_of != len(self.tokens):
                self.rewind(len(self.tokens) - 1)
            with self as queue:
                pages, end = self.pages.pages, self.computed
                while end > self.drafted and (end := traits.find_state(queue, pages, end - 1)) > self.drafted:
                    traits.drop_state(queue, pages, end)
        self.drafted = None

    def keep_end(self) -> None:
        """Runs what is pending, and keeps the state behind all tokens for good, if the model has states."""
        if self.info.state_pages and self.tokens:
            with self:
                self.flush()
                self.keep_state()

    def position(self, token: int) -> int:
        """Where a token that was not dropped is, which has keys."""
        return self.offset + token + sum(gap for start, *_, gap in self.drops if start > token)

    def truncate(self, length: int) -> None:
        """Keeps the first `length` tokens."""
        del self.tokens[length:]
        if self.drops:
            self.offset += sum(gap for start, *_, gap in self.drops if start >= length)
            self.drops = [(a, min(b, length), min(n, length), gap) for a, b, n, gap in self.drops if a < length]
        self.images.cut(length)
        self.ends = [one for one in self.ends if one <= length]
        self.rewind(length)

    def drop(self, start: int, stop: int, close_gap: bool, seen_by: int | None = None) -> None:
        """Hides tokens from what comes, which is all behind the first `seen_by`: all but the last token, unless others
        are told. The last token stays, and runs again for the next output. With `close_gap` the tokens behind move up,
        if the model can move tokens."""
        check_states(self.info, "drop")
        with self as queue:
            self.compute(len(self.tokens) - 1 if seen_by is None else seen_by, ())
            gap = self.pages.drop(queue, start, stop, self.computed, close_gap and self.info.moves_tokens)
        self.drops.append((start, stop, self.computed, gap))
        self.offset -= gap
        self.output_of = 0

    # ---- text and images ----

    def append(self, tokens: Sequence[int], parts: Sequence[Callable[[], Sequence[int]]] = ()) -> None:
        """Appends tokens. `parts`: each gives those of a first part of them alone. At models with states others can go
        on where parts of a long prompt end, so the ends are noted."""
        if self.info.state_pages and not self.computed and len(self.tokens) + len(tokens) >= LEAST_SHARED:
            self.ends += [len(self.tokens)] if self.tokens else []
            self.ends += [len(self.tokens) + common_length(part(), tokens) for part in parts]
        self.tokens += tokens

    def add_image(self, image: Image) -> None:
        """Appends an image."""
        with self.queues.some() as queue:
            tokens = image.tokens(queue, self.info)
        self.images.places.append(Seen(image, len(self.tokens), len(self.tokens) + len(tokens)))
        self.tokens += tokens

    def tokenize(self, text: str, special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""
        with self.queues.some() as queue:
            return traits.tokenize(queue, text, special_tokens)

    def last_text(self) -> str:
        """Text of the last tokens, for people."""
        return self.detokenize(self.tokens[-SHOWN_TOKENS:]) if self.tokens else ""

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Text of tokens, without special tokens."""
        with self.queues.some() as queue:
            if len(tokens) <= MOST_LISTED:
                return traits.detokenize(queue, tokens)
            detokenizer = traits.create_detokenizer(queue)
            starts = range(0, len(tokens), MOST_LISTED)
            try:
                return "".join(traits.push_tokens(detokenizer, tokens[at : at + MOST_LISTED]) for at in starts)
            finally:
                traits.destroy_detokenizer(detokenizer)
