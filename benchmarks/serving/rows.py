"""The rows of `serve`: one measure each, with the bound that it shall keep."""

from __future__ import annotations

from dataclasses import dataclass

MET, MISSED, UNKNOWN = "met", "missed", "not measured"
DIGITS = 4


@dataclass(frozen=True)
class Row:
    """`at`: under which load. `bound`: what is wanted, such as "<= 1.02"; empty: nothing. `verdict`: met, missed or not
    measured."""

    scenario: str
    measure: str
    at: str
    value: float | None
    unit: str
    bound: str
    verdict: str
    note: str


def row(
    scenario: str, measure: str, value: float | None, unit: str = "", *, at: str = "", bound: str = "", note: str = ""
) -> Row:
    """A row, with its verdict. A value of None could not be measured: `note` says why."""
    verdict = _verdict(value, bound) if bound else ""
    shown = None if value is None else float(f"{value:.{DIGITS}g}")
    return Row(scenario, measure, at, shown, unit, bound, verdict, note)


def over(mine: float, its: float) -> float | None:
    """The ratio; None if there is nothing to compare with, as where all tokens of a text came at one moment."""
    return mine / its if its else None


def _verdict(value: float | None, bound: str) -> str:
    if value is None:
        return UNKNOWN
    return MET if keeps(value, bound) else MISSED


def keeps(value: float, bound: str) -> bool:
    """Whether a value keeps a bound, which begins with <= or >=."""
    sign, _, limit = bound.partition(" ")
    return value <= float(limit) if sign == "<=" else value >= float(limit)
