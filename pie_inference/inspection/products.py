"""Says whose matrix products serve a model here, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from ..assembly.plan import ServingPlan
from ..cpu_kernels.ways import Ways
from ..trials.choose import known_ways, tries
from ..trials.kept import Trials


@dataclass(frozen=True)
class ServedProducts:
    """`kernels`: the instruction set that the compiled kernels use, or None if none serve. `why`: a line for people."""

    kernels: str | None
    ways: Ways
    why: str
    trials: dict[str, list[dict[str, object]]]  # by kind: each size with its seconds by way; empty: none were made


def describe_products(plan: ServingPlan) -> ServedProducts:
    """Reads what earlier trials have found; makes none."""
    ways, trials = known_ways(plan)
    kernels = None if plan.library is None else plan.library.isa
    found = {kind: [asdict(each) for each in timed] for kind, timed in (trials or {}).items()}
    return ServedProducts(kernels, ways, _why(plan, ways, trials), found)


def _why(plan: ServingPlan, ways: Ways, trials: Trials | None) -> str:
    if plan.device.type != "cpu":
        return "the GPU's libraries"
    if plan.library is None:
        return "torch's: there are no compiled kernels here"
    own = f"compiled here for {plan.library.isa}"
    if not tries(plan):
        return own
    if trials is None:
        return f"{own}; to be tried against torch's at the first start"
    return f"{own}; " + "; ".join(_kinds(ways, trials))


def _kinds(ways: Ways, trials: Trials) -> Iterator[str]:
    """One part for each kind that was tried: the way that serves, and how much faster than the other it was."""
    for kind, timed in trials.items():
        way = asdict(ways)[kind]
        names = ("ours", "torch's") if way == "own" else ("torch's", "ours")
        other = "torch" if way == "own" else "own"
        ratios = [each.seconds[other] / each.seconds[way] for each in timed if len(each.seconds) > 1]
        yield f"{kind.replace('_', ' ')} {names[0]}, {_span(ratios)} times as fast as {names[1]}"


def _span(ratios: Sequence[float]) -> str:
    least, most = (f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}" for ratio in (min(ratios), max(ratios)))
    return least if least == most else f"{least} to {most}"
