"""A request for completions of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferlet_sdk.context import Context
from inferlet_sdk.served.errors import of_field
from inferlet_sdk.served.fields import Fields, tokens_of
from inferlet_sdk.served.requests.wanted import MOST_ALTERNATIVES, Place, Wanted, check_known

USUAL_TOKENS = 16
MOST_PROMPTS = 128

Prompt = str | list[int]


@dataclass(frozen=True)
class CompletionRequest:
    """What completions are made of: each prompt gets `wanted.n`. `wanted.max_tokens` of 0 asks for an echo alone."""

    wanted: Wanted
    place: Place
    prompts: Sequence[Prompt]
    echo: bool
    begins: bool
    """Whether the tokens with which texts for the model begin stand before a text."""

    @classmethod
    def read(cls, fields: Fields, place: Place) -> CompletionRequest:
        """Reads and checks all fields. Raises Refused."""
        echo = fields.flag("echo")
        bound = "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"
        most = fields.whole(bound, 0 if echo else 1, default=USUAL_TOKENS)
        logprobs = fields.whole("logprobs", 0, MOST_ALTERNATIVES) if "logprobs" in fields else None
        wanted = Wanted.read(fields, place, most, logprobs)
        fields.allow_only("best_of", (1, wanted.n), "must be n: answers are not ranked")
        if echo and wanted.stream:
            raise fields.refuse("echo", "does not go with stream")
        prompts = _prompts(fields)
        if len(prompts) * wanted.n > MOST_PROMPTS:
            raise fields.wrong("prompt", f"at most {MOST_PROMPTS} answers in all, of {len(prompts)} prompts")
        for one in prompts:
            if not isinstance(one, str):
                check_known(one, "prompt", place.model)
        return cls(wanted, place, prompts, echo, fields.flag("add_special_tokens", default=True))

    def fill(self, ctx: Context, prompt: Prompt) -> Context:
        """Fills a context with a prompt, and gives it. An empty one is the token with which texts begin."""
        with of_field("prompt"):
            if not isinstance(prompt, str):
                return ctx.fill(prompt)
            first = ctx.model.bos_text or ""
            if self.begins and ctx.model.begin_tokens and not (first and prompt.startswith(first)):
                return ctx.fill(ctx.model.begin_tokens).fill(prompt)
            return ctx.fill(prompt or first)


def _prompts(fields: Fields) -> list[Prompt]:
    given = fields.get("prompt")
    if given is None:
        given = ""
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list) or not given:
        raise fields.wrong("prompt", "a text, a list of texts, a list of token ids, or a list of such lists")
    if (tokens := tokens_of(given)) is not None:
        return [tokens]
    prompts = [one if isinstance(one, str) else tokens_of(one) for one in given]
    if all(one is not None and (one or isinstance(one, str)) for one in prompts):
        return [one for one in prompts if one is not None]
    raise fields.wrong("prompt", "a text, a list of texts, a list of token ids, or a list of such lists")
