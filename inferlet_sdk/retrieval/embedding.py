"""Vectors of texts."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from math import sqrt

from inferlet_sdk import traits
from inferlet_sdk.addresses import Embeds
from inferlet_sdk.dropped import give_back
from inferlet_sdk.errors import TooLong
from inferlet_sdk.retrieval.together import each, pages_of
from inferlet_sdk.sequences.queues import queues_of
from inferlet_sdk.sequences.sequence import TokenSequence
from inferlet_sdk.traits.arguments import flag, numbers, whole, wrong
from inferlet_sdk.traits.arguments import text as checked_text

MOST_OUTPUTS = 256
"""States that are pooled at a time. The mean of a longer text is made of those of its parts."""


async def embed(
    texts: str | Sequence[str] | Sequence[Sequence[int]],
    model: str | None = None,
    *,
    pooling: str | None = None,
    dimensions: int = 0,
    normalize: bool = True,
    adapter: str | None = None,
) -> list[array[float]]:
    """The vector of each text, or of each list of tokens, as an `array` of f32.

    It is the hidden state of the last token behind the last norm (`pooling="last"`), or the mean of those of all tokens
    ("mean"); None: as the model was made for, or "last". Its first `dimensions` numbers are kept (0: all), and divided
    by their length unless `normalize` is False. Texts get the tokens around them that the model's tokenizer adds, and
    special tokens in them are plain text. Models that were made for embeddings of queries want an instruction in front
    of a query: see their model cards.
    """
    name = model if model is not None else traits.available_models()[0]
    info = queues_of(name).info
    mode = info.pooling or "last" if pooling is None else pooling
    if mode not in ("last", "mean"):
        raise ValueError(f"pooling: there is no {mode!r}; use last or mean")
    size = whole(dimensions, "dimensions", most=info.hidden_size)
    asked = size, flag(normalize, "normalize")
    if not isinstance(texts, Iterable):
        raise wrong("texts", "a text, or a list of texts or of lists of token ids", texts)
    given: Sequence[str | Sequence[int]] = [texts] if isinstance(texts, str) else texts
    lists = [text_tokens(name, text, f"texts[{place}]") for place, text in enumerate(given)]

    async def one(tokens: list[int]) -> array[float]:
        sequence = TokenSequence(queues_of(name), adapter=adapter or "")
        sequence.tokens += tokens
        try:
            with sequence:
                return await (_last(sequence, *asked) if mode == "last" else _mean(sequence, *asked))
        finally:
            sequence.close()

    return await each(one, lists, lambda tokens: pages_of(info, tokens), queues_of(name))


def text_tokens(model: str, text: str | Sequence[int], name: str = "text") -> list[int]:
    """The tokens of a text with those around it, as `embed` runs them; a list of tokens is left as it is. Raises
    ValueError if there are none, TooLong if there are more than the model's context holds."""
    queues = queues_of(model)
    if isinstance(text, str):
        give_back()
        with queues.some() as queue:
            plain = traits.tokenize(queue, checked_text(text, name), special_tokens=False)
        tokens = [*queues.info.begin_tokens, *plain, *queues.info.end_tokens]
    elif isinstance(text, Sequence):
        tokens = numbers(text, name, "a token id")
    else:
        raise wrong(name, "a text or a list of token ids", text)
    if not tokens:
        raise ValueError(f"{name}: there is no token in it")
    if len(tokens) > queues.info.max_context:
        raise TooLong(f"{name}: {len(tokens)} tokens are more than the {queues.info.max_context} of the context")
    return tokens


async def _last(sequence: TokenSequence, dimensions: int, normalize: bool) -> array[float]:
    sequence.flush()
    output = Embeds((sequence.output_embed, 1))
    return await traits.get_embedding(sequence.queue, output, "last", dimensions, normalize)


async def _mean(sequence: TokenSequence, dimensions: int, normalize: bool) -> array[float]:
    tokens, most = sequence.tokens, min(MOST_OUTPUTS, sequence.info.max_batch_tokens)
    total = [0.0] * (dimensions or sequence.info.hidden_size)
    for start in range(0, len(tokens), most):
        part = tokens[start : start + most]
        embeds = sequence.queues.alloc_embeds(sequence.queue, 2 * len(part))
        outputs = embeds[len(part) :]
        try:
            sequence.run(part, embeds[: len(part)], outputs)
            future = traits.get_embedding(sequence.queue, outputs, "mean", dimensions, normalize=False)
        finally:
            traits.dealloc_emb(sequence.queue, embeds)
        total = [sum_ + len(part) * number for sum_, number in zip(total, await future, strict=True)]
    length = sqrt(sum(number * number for number in total)) if normalize else len(tokens)
    return array("f", (number / (length or 1) for number in total))
