"""The contexts of a request: one for its prompt, and a fork for each of its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferlet_sdk.context import Context
from inferlet_sdk.served.errors import Refused, too_long
from inferlet_sdk.served.requests.wanted import Place, Wanted
from inferlet_sdk.traits.runs import TokenLogprobs


def open_prompt(place: Place, wanted: Wanted) -> Context:
    """An empty context of the model that the server has chosen."""
    return Context(place.model, adapter=place.adapter, share=wanted.cache_salt or True)


async def forks(ctx: Context, wanted: Wanted, param: str) -> Sequence[Context]:
    """A context with the prompt for each answer: several share its keys, which are computed once. Raises Refused for a
    prompt that is empty, or longer than the model takes. `param`: the field that the prompt comes from."""
    if not len(ctx):
        raise Refused(f"{param}: the prompt is empty", param)
    if len(ctx) >= ctx.model.max_context:
        raise too_long(
            f"{param}: the prompt has {len(ctx)} tokens, and {ctx.model.name} takes at most {ctx.model.max_context}, "
            "answer included",
            param,
        )
    if wanted.n == 1:
        return [ctx]
    await ctx.flush()
    return [ctx.fork() for _ in range(wanted.n)]


@dataclass(frozen=True)
class Echo:
    """A prompt that is told with its answers: its text, its tokens, and their log-probabilities if they are wanted; the
    first token has none."""

    text: str
    tokens: Sequence[int]
    scores: Sequence[TokenLogprobs | None] = ()

    @classmethod
    async def of(cls, ctx: Context, place: Place, alternatives: int | None) -> Echo:
        """The echo of the prompt that a context has; `alternatives`: of each token, None for no log-probabilities."""
        tokens = ctx.tokens
        if alternatives is None:
            return cls(ctx.text, tokens)
        with Context(place.model, adapter=place.adapter, share=False).fill(tokens[:1]) as first:
            rest = await first.score(tokens[1:], alternatives=alternatives) if tokens[1:] else []
        return cls(ctx.text, tokens, [None, *rest])
