"""The settings of a sampler, which cross as JSON so that there can be more of them (fused.wit, create-sampler)."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

from ..calls.sampler import Sampler, SamplingParams
from ..errors import InvalidArgument

MAX_CONFIG = 2048
"""Characters: settings are a few numbers. It bounds the depth of what is parsed on the guest's stack, too."""
SEEDS = 2**64
PARAMS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition",
    "frequency_penalty": "frequency",
    "presence_penalty": "presence",
}
"""Fields of SamplingParams by key."""
WHOLE = ("top_k", "seed")
KEYS = (*PARAMS, "seed")


def new_sampler(config: str) -> Sampler:
    """Raises InvalidArgument, naming the key."""
    given = _parse(config)
    for key, value in given.items():
        _check(key, value)
    settings = {key: value for key, value in given.items() if value is not None}
    seed = settings.pop("seed", None)
    if seed is not None and not 0 <= seed < SEEDS:
        raise InvalidArgument(f"seed is {seed}; it must lie between 0 and {SEEDS - 1}")
    return Sampler(SamplingParams(**{PARAMS[key]: value for key, value in settings.items()}), seed)


def _parse(config: str) -> Mapping[str, Any]:
    if len(config) > MAX_CONFIG:
        raise InvalidArgument(f"the settings of a sampler have {len(config)} characters, more than {MAX_CONFIG}")
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
    allowed = (int,) if key in WHOLE else (int, float)
    if value is not None and (isinstance(value, bool) or not isinstance(value, allowed)):
        wanted = "a whole number" if key in WHOLE else "a number"
        raise InvalidArgument(f"{key} must be {wanted}, not {json.dumps(value)}")
