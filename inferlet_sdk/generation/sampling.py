"""How the next token is chosen.

A `Sampler` runs on the worker, which sends only the token. Any function from a `Dist` to a token is a sampler too; it
runs in the inferlet, which waits for each distribution (no run-ahead).
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import takewhile
from math import inf, log2

from inferlet_sdk import traits
from inferlet_sdk.sequences.queues import Queues
from inferlet_sdk.traits import Dist
from inferlet_sdk.traits.arguments import LARGEST_U64, number, whole, wrong


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
    """Equal seeds give equal tokens, at any load of the server; None: a random seed."""
    typical_p: float = 1.0
    """Only the tokens whose surprise is closest to the entropy, as many as reach this mass (locally typical sampling);
    1: all."""
    window: int = 64
    """Number of last tokens of the context, prompt included, that the penalties treat as recent; 0: all."""
    since: int = 0
    """Number of first tokens of the context, such as a prompt, that the penalties leave out."""

    @property
    def looks_back(self) -> bool:
        """Whether a penalty is set, so that recent tokens matter."""
        return (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) != (1.0, 0.0, 0.0)

    def create(self) -> int:
        """Creates a sampler of the host, which the caller destroys. Raises as `traits.create_sampler`, and for what the
        host is not told with it."""
        for name in _HERE:
            whole(getattr(self, name), name)
        options = {field.name: getattr(self, field.name) for field in fields(Sampler) if field.name not in _HERE}
        return traits.create_sampler(**options)

    def take(self, queues: Queues) -> int:
        """A sampler of the host, until `give`. The contexts of a model share the default one."""
        return queues.greedy() if self == GREEDY else self.create()

    def give(self, sampler: int) -> None:
        """The sampler of the host is not used any more."""
        if self != GREEDY:
            traits.destroy_sampler(sampler)

    def recent(self, tokens: Sequence[int]) -> Sequence[int]:
        """Those tokens of a context at which the penalties look."""
        first = max(self.since, len(tokens) - self.window if self.window else 0)
        return tokens[first:] if self.looks_back else []


_HERE = ("window", "since")
"""What the host is not told with the sampler."""


@dataclass(frozen=True)
class Greedy(Sampler):
    """Always the most probable token."""

    temperature: float = 0.0


GREEDY = Greedy()


def seeded(sampler: Sampler, count: int) -> list[Sampler]:
    """Samplers for several continuations: a seed is that of the first, and the others have the next ones."""
    if not isinstance(sampler, Sampler):
        raise TypeError(f"sampler: give a Sampler: each continuation has its own, and {sampler!r} is none")
    if sampler.seed is None:
        return [sampler] * count
    seed = whole(sampler.seed, "seed", most=LARGEST_U64)
    return [replace(sampler, seed=(seed + n) % 2**64) for n in range(count)]


Choose = Callable[[Dist], int | Awaitable[int]]
"""A function from a `Dist` to a token, or an `async def`."""


@dataclass(frozen=True)
class DistSampler:
    """A custom sampler: `choose` gets the `k` most probable tokens, with logits divided by `temperature`, and returns
    one of them, or an awaitable of it."""

    choose: Choose
    k: int = 256
    temperature: float = 1.0


class Mirostat:
    """A sampler that keeps the surprise of the text near a target, in bits a token: Mirostat 2.0 (Basu et al. 2021).
    Tokens with more surprise than a bound are left out, and the bound follows the error of those that were chosen.

    It runs in the inferlet, and has a state: make one for each text.
    """

    def __init__(self, target: float = 5.0, *, rate: float = 0.1, seed: int | None = None) -> None:
        """`target`: bits a token; `rate`: how much of an error the bound follows."""
        self.target: float = number(target, "target")
        self.rate: float = number(rate, "rate")
        self.bound = 2 * self.target
        self._random = random.Random(seed)

    def __call__(self, dist: Dist) -> int:
        """The next token, of those that the distribution names."""
        surprises = [-log2(p) if p > 0 else inf for p in dist.probabilities]
        kept = max(1, sum(1 for _ in takewhile(lambda one: one <= self.bound, surprises)))
        (place,) = self._random.choices(range(kept), dist.probabilities[:kept])
        self.bound -= self.rate * (surprises[place] - self.target)
        return dist.tokens[place]


AnySampler = Sampler | DistSampler | Choose


def as_sampler(sampler: AnySampler) -> Sampler | DistSampler:
    """Wraps a plain function in a `DistSampler`; raises TypeError for anything else."""
    if isinstance(sampler, Sampler | DistSampler):
        return sampler
    if callable(sampler) and not isinstance(sampler, type):
        return DistSampler(sampler)
    raise wrong("sampler", "a Sampler, a DistSampler or a function of a Dist, such as `Greedy()`", sampler)
