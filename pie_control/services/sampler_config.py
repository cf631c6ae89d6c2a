"""The settings of a sampler, which cross as JSON so that there can be more of them (fused.wit, create-sampler)."""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Mapping
from typing import Any

from ..calls.sampler import Bias, Sampler, SamplingParams, make_bias
from ..errors import InvalidArgument
from ..services.nesting import check_depth

MAX_CONFIG = 1 << 14
"""Characters: settings are a few numbers, and the largest logit bias."""
MAX_DEPTH = 8
"""Levels: more than settings have."""
MOST_DIGITS = 10
"""Digits of a token id, which has 32 bits."""
MOST_REMEMBERED = 256
"""Texts whose meaning is known: programs make the same sampler again and again."""
SEEDS = 2**64
PARAMS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition",
    "frequency_penalty": "frequency",
    "presence_penalty": "presence",
    "typical_p": "typical_p",
}
"""Fields of SamplingParams by key."""
WHOLE = ("top_k", "seed")
KEYS = (*PARAMS, "logit_bias", "seed")


def new_sampler(config: str) -> Sampler:
    """Raises InvalidArgument, naming the key."""
    return Sampler(*_settings(config))


@functools.lru_cache(MOST_REMEMBERED)
def _settings(config: str) -> tuple[SamplingParams, int | None, Bias | None]:
    given = _parse(config)
    for key, value in given.items():
        _check(key, value)
    settings = {key: value for key, value in given.items() if value is not None}
    seed = settings.pop("seed", None)
    if seed is not None and not 0 <= seed < SEEDS:
        raise InvalidArgument(f"seed is {seed}; it must lie between 0 and {SEEDS - 1}")
    bias = _parse_bias(settings.pop("logit_bias", {}))
    return SamplingParams(**{PARAMS[key]: value for key, value in settings.items()}), seed, bias


def _parse_bias(given: Any) -> Bias | None:
    pairs = []
    for token, value in given.items():
        if not (token.isascii() and token.isdecimal() and len(token) <= MOST_DIGITS):
            raise InvalidArgument(f"logit_bias is by token id, and {json.dumps(token)[:40]} is none")
        _check_number(f"logit_bias of token {token}", value, "a number", (int, float))
        pairs.append((int(token), value))
    return make_bias(pairs)


def _parse(config: str) -> Mapping[str, Any]:
    if len(config) > MAX_CONFIG:
        raise InvalidArgument(f"the settings of a sampler have {len(config)} characters, more than {MAX_CONFIG}")
    check_depth(config, "the settings of a sampler", MAX_DEPTH)
    try:
        settings = json.loads(config)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the settings of a sampler are not JSON: {error}") from error
    if not isinstance(settings, dict):
        raise InvalidArgument(f"the settings of a sampler must be a JSON object, not a {type(settings).__name__}")
    return settings


def _check(key: str, value: object) -> None:
    """The key is known, and the value of its type."""
    if key not in KEYS:
        similar = difflib.get_close_matches(key, KEYS, 1)
        meant = f"do you mean {similar[0]!r}?" if similar else f"there are {', '.join(KEYS)}"
        raise InvalidArgument(f"samplers have no setting {key!r}: {meant}")
    if key == "logit_bias":
        if not isinstance(value, dict | None):
            raise InvalidArgument(f'logit_bias must be an object, as in {{"42": -5.0}}, not {json.dumps(value)[:40]}')
    elif value is not None:
        wanted, allowed = ("a whole number", (int,)) if key in WHOLE else ("a number", (int, float))
        _check_number(key, value, wanted, allowed)


def _check_number(name: str, value: object, wanted: str, allowed: tuple[type, ...]) -> None:
    if isinstance(value, bool) or not isinstance(value, allowed):
        raise InvalidArgument(f"{name} must be {wanted}, not {json.dumps(value)[:40]}")
