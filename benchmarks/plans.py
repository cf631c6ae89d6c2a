"""A benchmark's plan as options of the command line: one for each field, which replaces the value of the chosen
form."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from .catalog import Benchmark

FORMS = {
    "quick": "fewer rows and samples, mostly in less than a minute",
    "tiny": "too small to measure anything: only to see that it runs",
}
"""The forms beside the full one."""


MAY_BE_ZERO = {"least": 0}
"""Metadata of a field. Others may be 0 if they are times, or 0 in a form."""
TIMES = ("_ms", "_us", "round_trip", "round_trips")


def add_options(parser: argparse.ArgumentParser, benchmark: Benchmark) -> None:
    """Adds an option for each field of the plan whose type an option can have, and what the columns of rows are."""
    forms = _forms(benchmark)
    parser.set_defaults(form="full")
    for form, text in FORMS.items():
        if form in forms:
            parser.add_argument(f"--{form}", dest="form", action="store_const", const=form, help=text)
    if row := getattr(benchmark, "Row", None):
        parser.epilog = f"rows:\n{inspect.getdoc(row)}"
    kind = type(benchmark.FULL)
    group = parser.add_argument_group("plan", inspect.getdoc(kind))
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if (taken := _taken(hints[field.name])) is not None:
            values = {form: getattr(plan, field.name) for form, plan in forms.items()}
            group.add_argument(f"--{field.name.replace('_', '-')}", help=_defaults(values), **taken)


def chosen(benchmark: Benchmark, options: argparse.Namespace) -> Any:
    """The plan that the options ask for. Raises ValueError if it makes no sense."""
    plan = _forms(benchmark)[options.form]
    given = {field.name: getattr(options, field.name, None) for field in dataclasses.fields(plan)}
    given = {name: value for name, value in given.items() if value is not None}
    for field in dataclasses.fields(plan):
        usual = [number for form in _forms(benchmark).values() for number in _integers(getattr(form, field.name))]
        least = min([field.metadata.get("least", 0 if field.name.endswith(TIMES) else 1), *usual])
        if any(number < least for number in _integers(given.get(field.name))):
            raise ValueError(f"--{field.name.replace('_', '-')} is {_shown(given[field.name])}: give {least} or more")
    return dataclasses.replace(plan, **given)


def _integers(value: Any) -> list[int]:
    """Those that an option has."""
    return [one for one in (value if isinstance(value, tuple) else (value,)) if isinstance(one, int)]


def refuse_unknown(what: str, given: tuple[str, ...], known: tuple[str, ...]) -> None:
    """Raises ValueError, naming the known values, if some given ones are unknown; for a plan's `__post_init__`."""
    if unknown := [name for name in given if name not in known]:
        raise ValueError(f"there is no {what} {', '.join(unknown)}; there are {', '.join(known)}")


def _forms(benchmark: Benchmark) -> Mapping[str, Any]:
    found = {form: getattr(benchmark, form.upper(), None) for form in ("full", *FORMS)}
    return {form: plan for form, plan in found.items() if plan is not None}


def _taken(hint: Any) -> dict[str, Any] | None:
    """The arguments of argparse for a type; None if no option can have it."""
    if get_origin(hint) is Literal:
        return {"choices": get_args(hint)}
    return TAKEN.get(hint)


def _listed(item: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    def parse(text: str) -> tuple[Any, ...]:
        return tuple(item(word.strip()) for word in text.split(",") if word.strip())

    parse.__name__ = f"list of {item.__name__}"  # argparse shows it in errors
    return parse


TAKEN: Mapping[Any, dict[str, Any]] = {
    int: {"type": int, "metavar": "N"},
    float: {"type": float, "metavar": "X"},
    str: {"metavar": "NAME"},
    Path | None: {"type": Path, "metavar": "FOLDER"},
    tuple[int, ...]: {"type": _listed(int), "metavar": "N,M"},
    tuple[str, ...]: {"type": _listed(str), "metavar": "A,B"},
}


def _defaults(values: Mapping[str, Any]) -> str:
    if len(set(values.values())) == 1:
        return "" if values["full"] is None else _shown(values["full"])
    return "; ".join(f"{form}: {_shown(value)}" for form, value in values.items())


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
