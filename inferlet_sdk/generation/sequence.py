"""A token sequence and its KV cache: the engine under `Context`.

`tokens` are the tokens of the sequence. The KV cache holds keys and values of the first `computed` tokens; the others
are pending and run together at the next `flush`. The output embed holds the last hidden state of token `output_of - 1`,
which is the one needed while `output_of == len(tokens)`. During run-ahead `computed` exceeds `len(tokens)`; `rewind`
drops the excess.
"""

from __future__ import annotations

from collections.abc import Sequence

from inferlet_sdk import bindings, traits
from inferlet_sdk.addresses import Embeds, Pages
from inferlet_sdk.errors import InvalidState
from inferlet_sdk.generation.page_table import PageTable

MAX_CHUNK = 512
"""Most tokens in one `forward`, which bounds the embeds that a long prompt needs. The scheduler joins and splits the
calls freely.
"""


class TokenSequence:
    """Tokens, queue, pages and embeds of one context."""

    def __init__(self, info: traits.core.ModelInfo, parent: TokenSequence | None = None) -> None:
        self.info = info
        self.queue = traits.create_queue(info.name)
        self.tokens: list[int] = []
        self.computed = 0
        self.output_of = 0
        self.closed = False
        self.pages = PageTable(self.queue, info.page_size)
        embeds = traits.alloc_emb(self.queue, 2)
        self.output_embed = embeds[1]
        self._input = list(embeds[:1].ranges)
        self._output = list(embeds[1:].ranges)
        if parent is not None:
            self._inherit(parent)

    def _inherit(self, parent: TokenSequence) -> None:
        """Leaves the last token pending: running it again gives this sequence its own output."""
        self.tokens = parent.tokens.copy()
        self.computed = min(parent.computed, max(len(self.tokens) - 1, 0))
        self.pages = parent.pages.fork(self.queue, self.computed)

    def fork(self) -> TokenSequence:
        """A sequence with the same tokens. Runs pending tokens first, so that they are computed once for both."""
        self.compute(len(self.tokens) - 1, ())
        return TokenSequence(self.info, self)

    def flush(self) -> None:
        """Runs all pending tokens; the output embed then belongs to the last one."""
        if not self.tokens:
            raise InvalidState("the context is empty: `fill` it before generating")
        if self.output_of == len(self.tokens) == self.computed:
            return
        self.rewind(len(self.tokens) - 1)
        self.compute(len(self.tokens), self._output)
        self.output_of = self.computed

    def compute(self, end: int, output_embeds: Sequence[int]) -> None:
        """Runs pending tokens up to `end`; the last outputs go to `output_embeds` (ranges)."""
        while self.computed < end:
            stop = min(end, self.computed + MAX_CHUNK)
            self._compute_chunk(stop, output_embeds if stop == end else ())

    def _compute_chunk(self, stop: int, output_embeds: Sequence[int]) -> None:
        start = self.computed
        inputs = Embeds(self._input) if stop - start == 1 else traits.alloc_emb(self.queue, stop - start)
        self.run(self.tokens[start:stop], inputs, Embeds(output_embeds))
        if stop - start > 1:
            traits.dealloc_emb(self.queue, inputs)

    def run(self, tokens: Sequence[int], inputs: Embeds, outputs: Embeds) -> None:
        """Runs tokens and appends their keys and values."""
        start, stop = self.computed, self.computed + len(tokens)
        self.pages.reserve(stop)
        traits.embed_txt(self.queue, tokens, range(start, stop), inputs)
        traits.forward(self.queue, self.pages.pages, inputs, Pages(self.pages.output), outputs)
        self.computed = stop

    def step(self, token: int) -> None:
        """Runs one token or token reference and keeps its output. Makes raw host calls because this is the hot path."""
        position = self.computed
        if position >= self.pages.capacity:
            self.pages.reserve(position + 1)
        bindings.input_text.embed_txt(self.queue, [token], [position], self._input)
        bindings.forward.forward(self.queue, self.pages.context, self._input, self.pages.output, self._output)
        self.computed = self.output_of = position + 1

    def step_and_sample(self, token: int, sampler: int) -> int:
        """Does a `step` and samples the next token in the same call; returns the future."""
        position = self.computed
        if position >= self.pages.capacity:
            self.pages.reserve(position + 1)
        number: int = bindings.fused.forward_with_sampling(
            self.queue,
            [token],
            [position],
            self._input,
            self.pages.context,
            self.pages.output,
            self.output_embed,
            sampler,
        )
        self.computed = self.output_of = position + 1
        return number

    def rewind(self, length: int) -> None:
        """Drops keys and values after the first `length` tokens."""
        if self.computed > length:
            self.pages.cut(length)
            self.computed = length
            self.output_of = 0

    def truncate(self, length: int) -> None:
        """Keeps the first `length` tokens."""
        del self.tokens[length:]
        self.rewind(length)

    def close(self) -> None:
        """Frees queue, pages and embeds. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self.pages.close()
        traits.dealloc_emb(self.queue, Embeds((*self._input, *self._output)))
        traits.destroy_queue(self.queue)
