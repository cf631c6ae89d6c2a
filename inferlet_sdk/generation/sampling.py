"""How the next token is chosen.

A `Sampler` runs on the worker, which sends only the token. Any function from a `Dist` to a token is a sampler too; it
runs in the inferlet, which waits for each distribution (no run-ahead).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields, replace

from inferlet_sdk import traits
from inferlet_sdk.traits import Dist


@dataclass(frozen=True)
class Sampler:
    """Samples from the model's distribution, cut and reshaped. The defaults do not change the distribution."""

    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """Only the `top_k` most probable tokens; 0: all."""
    top_p: float = 1.0
    """Only the most probable tokens that together reach this mass; 1: all."""
    min_p: float = 0.0
    """Only tokens at least this fraction as probable as the most probable; 0: all."""
    repetition_penalty: float = 1.0
    """Divides positive logits of recent tokens, multiplies negative ones; 1: none."""
    frequency_penalty: float = 0.0
    """Subtracted from the logit of a recent token for each occurrence; 0: none."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of a recent token; 0: none."""
    logit_bias: Mapping[int, float] | None = None
    """Added to the logits of tokens, -1000 to 1000 each, for at most 512 tokens."""
    seed: int | None = None
    """The same seed gives the same tokens, at any load of the server; None: a random seed."""
    window: int = 64
    """Number of last tokens of the context, prompt included, that the penalties treat as recent."""

    @property
    def looks_back(self) -> bool:
        """Whether a penalty is set, so that recent tokens matter."""
        return (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) != (1.0, 0.0, 0.0)

    def create(self) -> int:
        """Creates a sampler of the host, which the caller destroys."""
        options = {field.name: getattr(self, field.name) for field in fields(Sampler) if field.name != "window"}
        return traits.create_sampler(**options)


@dataclass(frozen=True)
class Greedy(Sampler):
    """Always the most probable token."""

    temperature: float = 0.0


def seeded(sampler: Sampler, count: int) -> list[Sampler]:
    """Samplers for several continuations: a seed is that of the first, and the others have the next ones."""
    seed = sampler.seed
    return [sampler if seed is None else replace(sampler, seed=(seed + n) % 2**64) for n in range(count)]


Choose = Callable[[Dist], int | Awaitable[int]]
"""A function from a `Dist` to a token, or an `async def`."""


@dataclass(frozen=True)
class DistSampler:
    """A custom sampler: `choose` gets the `k` most probable tokens, with logits divided by `temperature`, and returns
    one of them, or an awaitable of it."""

    choose: Choose
    k: int = 256
    temperature: float = 1.0


AnySampler = Sampler | DistSampler | Choose


def as_sampler(sampler: AnySampler) -> Sampler | DistSampler:
    """Wraps a plain function in a `DistSampler`; raises TypeError for anything else."""
    if isinstance(sampler, Sampler | DistSampler):
        return sampler
    if callable(sampler):
        return DistSampler(sampler)
    raise TypeError(f"sampler: give a Sampler, a DistSampler or a function of a Dist, not {type(sampler).__name__}")
