"""What a request asks of a generation, as typed values: the fields that OpenAI's routes share, and those that engines'
users send beside them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from inferlet_sdk.errors import NotFound
from inferlet_sdk.generation.sampling import Sampler
from inferlet_sdk.grammars.grammar import Grammar
from inferlet_sdk.schemas.results import has_grammar
from inferlet_sdk.served.errors import Refused
from inferlet_sdk.served.fields import Fields
from inferlet_sdk.served.requests.caching import pinned_seconds
from inferlet_sdk.traits import available_models, get_env, get_model_info

MOST_CHOICES = 128
MOST_ALTERNATIVES = 20
MOST_BIASED = 400
"""Entries of `logit_bias`: the worker takes 512, and `min_tokens` forbids stop tokens by it, too."""

LEAST_P = 1e-9
"""The smallest `top_p` and `typical_p` that the worker takes: the likeliest token alone, as with a `top_p` of 0."""

NEVER: dict[str, str] = {
    **dict.fromkeys(
        ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_decoding_backend"),
        'is gone: use structured_outputs, as in {"regex": "[0-9]+"}',
    ),
    **dict.fromkeys(("functions", "function_call"), "is gone: use tools and tool_choice"),
    **dict.fromkeys(("audio", "web_search_options", "prediction", "verbosity", "moderation"), "is not served"),
    **dict.fromkeys(("logits_processors", "custom_logit_processor", "bad_words", "allowed_token_ids"), "is not served"),
    **dict.fromkeys(("lora_path", "session_params", "session_id", "stop_regex", "ebnf"), "is not served"),
    **dict.fromkeys(("use_beam_search", "length_penalty", "truncate_prompt_tokens", "suffix"), "is not served"),
}
"""Fields that are known and cannot be honoured."""


@dataclass(frozen=True)
class Place:
    """Where a request came from: its route, the identifier of its answer, which no other one has, and which model and
    adapter the server has chosen."""

    route: str
    request_id: str
    model: str
    adapter: str | None

    @classmethod
    def of_launch(cls) -> Place:
        """The place that the environment of the inferlet tells; the default model if it names none."""
        told = get_env()
        model = told.get("model") or available_models()[0]
        return cls(told.get("route", ""), told.get("answer_id") or told["inferlet"], model, told.get("adapter") or None)


@dataclass(frozen=True)
class Wanted:
    """What a request wants of each of its `n` answers."""

    name: str
    """The model as the request calls it."""
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    """With each chunk of a stream, too."""
    max_tokens: int | None = None
    n: int = 1
    sampler: Sampler = field(default_factory=Sampler)
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop: bool = False
    min_tokens: int = 0
    logprobs: int | None = None
    """Alternatives of each token; None: no log-probabilities."""
    prompt_logprobs: int | None = None
    """Alternatives of each token of the prompt; None: no log-probabilities."""
    grammar: Grammar | None = None
    kept_by: str = ""
    """The field that the grammar comes from."""
    token_ids: bool = False
    cache_salt: str = ""
    request_id: str = ""
    pinned_seconds: int = 0
    """For how long the keys of the prompt stay even when memory is short."""
    thinking_budget: int | None = None
    """Most tokens of reasoning."""

    @classmethod
    def read(cls, fields: Fields, place: Place, max_tokens: int | None, logprobs: int | None) -> Wanted:
        """Reads what all routes share. Raises Refused."""
        for name, reason in NEVER.items():
            if fields.get(name) not in (None, False):
                raise fields.refuse(name, reason)
        fields.allow_only("skip_special_tokens", (True,), "special tokens are never shown")
        fields.allow_only("spaces_between_special_tokens", (True, False), "must be true or false")
        fields.check_priority()
        fields.allow_only("service_tier", ("auto", "default"), "there is one tier")
        stream = fields.flag("stream")
        options = fields.object("stream_options")
        if options.values and not stream:
            raise fields.refuse("stream_options", 'goes with "stream": true')
        kept_by, grammar = _grammar(fields, place.model)
        return cls(
            name=fields.text("model", place.model),
            stream=stream,
            include_usage=options.flag("include_usage"),
            continuous_usage=options.flag("include_usage") and options.flag("continuous_usage_stats"),
            max_tokens=max_tokens,
            n=fields.whole("n", 1, MOST_CHOICES, 1),
            sampler=_sampler(fields, place.model),
            stop=tuple(one for one in fields.texts("stop") if one),
            stop_tokens=_stop_tokens(fields, place.model),
            ignore_eos=fields.flag("ignore_eos"),
            include_stop=fields.flag("include_stop_str_in_output"),
            min_tokens=_min_tokens(fields, max_tokens),
            logprobs=logprobs,
            prompt_logprobs=_prompt_logprobs(fields, stream),
            grammar=grammar,
            kept_by=kept_by,
            token_ids=fields.flag("return_token_ids"),
            cache_salt=fields.text("cache_salt"),
            pinned_seconds=pinned_seconds(fields),
            request_id=fields.text("request_id", place.request_id),
            thinking_budget=fields.whole("thinking_token_budget") if "thinking_token_budget" in fields else None,
        )


def check_model(place: Place) -> None:
    """Raises Refused for a model that the server does not have."""
    try:
        get_model_info(place.model)
    except NotFound as error:
        raise Refused(error.message, "model", status=404, code="model_not_found") from None


def most_tokens(fields: Fields, *names: str, default: int | None = None) -> int | None:
    """The bound on tokens of an answer: the first of the fields that is there."""
    for name in names:
        if name in fields:
            return fields.whole(name, 1)
    return default


def _prompt_logprobs(fields: Fields, is_stream: bool) -> int | None:
    if "prompt_logprobs" not in fields:
        return None
    if is_stream:
        raise fields.refuse("prompt_logprobs", "does not go with stream")
    return fields.whole("prompt_logprobs", 0, MOST_ALTERNATIVES)


def _min_tokens(fields: Fields, max_tokens: int | None) -> int:
    least = fields.whole("min_tokens")
    if max_tokens is not None and least > max_tokens:
        raise fields.wrong("min_tokens", f"at most max_tokens, which is {max_tokens}")
    return least


def _sampler(fields: Fields, model: str) -> Sampler:
    advised = get_model_info(model).sampling
    presence = fields.number("presence_penalty", -2, 2, 0.0)
    frequency = fields.number("frequency_penalty", -2, 2, 0.0)
    usual = 1.0 if presence or frequency else advised.get("repetition_penalty", 1.0)
    repetition = fields.number("repetition_penalty", 1e-3, 1e3, usual)
    if repetition != 1 and (presence or frequency):
        reason = "looks at the prompt, too, so it does not go with presence_penalty and frequency_penalty"
        raise fields.refuse("repetition_penalty", reason)
    return Sampler(
        temperature=fields.number("temperature", 0, 100, advised.get("temperature", 1.0)),
        top_k=max(fields.whole("top_k", -1, default=int(advised.get("top_k", 0))), 0),
        top_p=max(fields.number("top_p", 0, 1, advised.get("top_p", 1.0)), LEAST_P),
        min_p=fields.number("min_p", 0, 1, advised.get("min_p", 0.0)),
        typical_p=fields.number("typical_p", LEAST_P, 1, advised.get("typical_p", 1.0)),
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=_logit_bias(fields, model),
        seed=fields.seed("seed"),
        window=0,
    )


def _logit_bias(fields: Fields, model: str) -> dict[int, float] | None:
    given = fields.object("logit_bias")
    if not given.values:
        return None
    if len(given.values) > MOST_BIASED:
        raise fields.refuse("logit_bias", f"has {len(given.values)} entries: give at most {MOST_BIASED}")
    for token in given.values:
        if not token.isdecimal() or not token.isascii() or len(token) > 9:
            raise Refused(f"logit_bias: {token[:20]!r} is no token id", "logit_bias")
    check_known([int(token) for token in given.values], "logit_bias", model)
    return {int(token): given.number(token, -100, 100, 0.0) for token in given.values}


def _stop_tokens(fields: Fields, model: str) -> tuple[int, ...]:
    tokens = fields.tokens("stop_token_ids")
    check_known(tokens, "stop_token_ids", model)
    return tuple(tokens)


def check_known(tokens: Sequence[int], name: str, model: str) -> None:
    """Refuses token ids of a field that the model does not have."""
    if tokens and max(tokens) >= (size := get_model_info(model).vocab_size):
        raise Refused(f"{name}: token {max(tokens)} is not in the vocabulary of {size}", name)


# ---- what the text is kept to ----------------------------------------------------------------------------------------


def _grammar(fields: Fields, model: str) -> tuple[str, Grammar | None]:
    """The field that a grammar comes from, and the grammar."""
    found = {name: one for name, read in _GRAMMARS.items() if (one := read(fields)) is not None}
    if len(found) > 1:
        raise fields.refuse("structured_outputs", "does not go with response_format: give one of them")
    grammar: Grammar
    for name, grammar in found.items():
        if not has_grammar(model):
            raise fields.refuse(name, f"the model {model} cannot be kept to a grammar")
        return name, grammar
    return "", None


def _response_format(fields: Fields) -> Grammar | None:
    given = fields.object("response_format")
    kind = given.kind(("text", "json_object", "json_schema"))
    if kind == "text":
        return None
    if kind == "json_object":
        return Grammar.of_schema({"type": "object"})
    described = given.object("json_schema")
    described.text("name"), described.flag("strict")
    if "schema" not in described:
        raise described.wrong("schema", "a JSON Schema")
    return Grammar.of_schema(described.object("schema").values)


def _structured_outputs(fields: Fields) -> Grammar | None:
    given = fields.object("structured_outputs")
    kinds = [kind for kind in ("json", "json_object", "regex", "choice", "grammar") if kind in given]
    if not kinds:
        if given.values:
            raise fields.wrong("structured_outputs", "an object with json, json_object, regex, choice or grammar")
        return None
    if len(kinds) > 1:
        raise fields.refuse("structured_outputs", f"has {' and '.join(kinds)}: give one of them")
    kind = kinds[0]
    if kind == "json":
        return Grammar.of_schema(given.text(kind) if isinstance(given.get(kind), str) else given.object(kind).values)
    if kind == "json_object":
        return Grammar.of_schema({"type": "object"}) if given.flag(kind) else None
    if kind == "choice":
        options = given.texts(kind)
        if not options:
            raise given.wrong(kind, "a list of texts")
        return Grammar.of_regex("|".join(re.escape(one) for one in options))
    return Grammar.of_regex(given.text(kind)) if kind == "regex" else Grammar.of_lark(given.text(kind))


_GRAMMARS: dict[str, Any] = {"response_format": _response_format, "structured_outputs": _structured_outputs}
