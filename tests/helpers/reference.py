"""Writes docs/reference.md: every call with its trait, signature, meaning, refusals, and who handles it.

All of it is derived: signatures and texts from the WIT files, refusals from what a call's code raises, as far as it can
be followed without running it, and who handles it from the record of the call.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

import inferlet_sdk.traits
from pie_control import errors, host_api
from pie_control.calls import CALLS
from pie_control.calls.kind import Stage
from pie_control.calls.traits import TRAITS, VERSION, Trait
from pie_control.errors import CallError
from pie_control.host_api.guest import Guest
from pie_control.inferlets.futures import FutureTable
from pie_control.inferlets.inferlet import Inferlet
from pie_control.inferlets.relations.client import ClientMail
from pie_control.inferlets.waiting.background import Background
from pie_control.inferlets.waiting.waits import Waits
from pie_control.resources.address_space import AddressSpace

from .wit import WIT_FOLDER

CODES = {
    name: kind.code for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, CallError)
}
KNOWN = {
    "space": AddressSpace,
    "guest": Guest,
    "futures": FutureTable,
    "inferlet": Inferlet,
    "mail": ClientMail,
    "waits": Waits,
    "background": Background,
}
"""Types of what is called by these names."""
STAGES = {
    Stage.SHIFT: "the worker, first in a wave",
    Stage.COPY: "the worker, before the wave's embeds and forwards",
    Stage.EMBED: "the worker, before the wave's forwards",
    Stage.FORWARD: "the worker",
    Stage.HAND_ON: "the worker, behind the wave's forwards",
    Stage.OUTPUT: "the worker, at the end of a wave",
}
_INTERFACE = re.compile(r"((?:^/// ?[^\n]*\n)*)^interface ([\w-]+) \{(.*?)^\}", re.MULTILINE | re.DOTALL)
_FUNCTION = re.compile(r"((?:^  /// ?.*\n)*)^  %?([\w-]+: func\([^;]*);", re.MULTILINE)
COLUMNS = 120
_HEAD = """\
# Reference of the inferlet API

Every call of version {version}, as the files in `inferlet_sdk/wit` have it. `scripts/update_reference` writes this
page. `inferlet_sdk.traits` has each call under its name with underscores; what an `await-` function
gives is a future there. [sdk.md](sdk.md) has `Context`, which most programs need instead.

A refused call says why: its code stands behind *refused*. Left out are codes that any call with a queue may give:
`not-found` for a queue that does not exist, `unsupported` for a model without the trait. `worker-failed` may end any
future of a call that the worker handles. A command of a queue is handled in the queue's order.
"""


@dataclass(frozen=True)
class Function:
    """A function of the WIT: names with dashes."""

    name: str
    signature: str
    text: str


def page() -> str:
    """The page, in Markdown."""
    texts = "\n".join(path.read_text() for path in sorted(WIT_FOLDER.glob("*.wit")))
    interfaces = {name: (_plain(text), body) for text, name, body in _INTERFACE.findall(texts)}
    parts = [_HEAD.format(version=VERSION)]
    for trait in TRAITS:
        text, body = interfaces.get(trait.interface.replace("_", "-"), (_of_parameters(trait), ""))
        parts.append(_section(trait, text, body))
    return "\n".join(parts)


def _of_parameters(trait: Trait) -> str:
    """The text of a trait that has no functions of its own."""
    needing = [
        f"`{parameter}` of `{call.name}`"
        for call in CALLS.values()
        for parameter, interface in call.needs.items()
        if interface == trait.interface
    ]
    return f"Needed by {' and '.join(needing)}."


def _section(trait: Trait, text: str, body: str) -> str:
    needs = f"Needs {', '.join(trait.supertraits)}. " if trait.supertraits else ""
    lines = [f"## {trait.name}\n", f"{needs}{text}".strip() + "\n" if needs or text else ""]
    lines += [_entry(trait, function) for function in _functions(body)]
    return "\n".join(line for line in lines if line)


def _functions(body: str) -> Iterator[Function]:
    for text, signature in _FUNCTION.findall(body):
        yield Function(signature.partition(":")[0], " ".join(signature.split()), _plain(text))


def _plain(text: str) -> str:
    """A comment without its slashes; lines that belong together are joined, but for lists."""
    lines = [re.sub(r"^\s*/// ?", "", line) for line in text.splitlines()]
    paragraphs: list[str] = []
    for line in lines:
        if not line or line.startswith("- ") or not paragraphs or paragraphs[-1] == "":
            paragraphs.append(line)
        else:
            paragraphs[-1] += " " + line.strip()
    return "\n".join(map(_wrapped, paragraphs))


def _wrapped(paragraph: str, indent: str = "  ") -> str:
    """A paragraph, or an item of a list, in lines of at most COLUMNS."""
    later = indent if paragraph.startswith("- ") else ""
    return textwrap.fill(paragraph, COLUMNS, subsequent_indent=later, break_long_words=False, break_on_hyphens=False)


def _entry(trait: Trait, function: Function) -> str:
    name = function.name.replace("-", "_")
    facts = [f"*handled by* {_handler(name)}"]
    if refusals := _refusals(trait.interface, function.name):
        facts.append("*refused* " + ", ".join(f"`{code}`" for code in refusals))
    if python := _python(name):
        facts.append(f"*in Python* `{python}`")
    text = function.text + "\n\n" if function.text else ""
    signature = textwrap.fill(
        function.signature, COLUMNS, initial_indent="    ", subsequent_indent="      ", break_on_hyphens=False
    )
    return f"### {function.name}\n\n{signature}\n\n{text}{_wrapped('; '.join(facts))}\n"


def _handler(name: str) -> str:
    call = CALLS.get(name)
    if call is None:
        return "the application host"
    return STAGES.get(call.stage, "the control layer")


def _python(name: str) -> str:
    """The form in the SDK, if it has one of the same name."""
    function = getattr(inferlet_sdk.traits, name, None)
    return f"{name}{inspect.signature(function)}".replace("'", "") if callable(function) else ""


# ---- refusals ----


def _refusals(interface: str, name: str) -> list[str]:
    """Codes, in alphabetical order."""
    call = CALLS.get(name.replace("-", "_"))
    found = {"NotFound"} if name.startswith(("take-", "await-")) else set()
    written = host_api.functions()[interface.replace("_", "-"), name].call
    found |= _raised(inspect.unwrap(call.issue if call and call.issue else written))
    return sorted({CODES[one] for one in found} - ({"unsupported"} if call else set()))


@cache
def _raised(function: Any) -> frozenset[str]:
    """Names of the errors of calls that a function raises, or one that it calls."""
    found: set[str] = set()
    seen: set[Any] = set()
    waiting = [function]
    while waiting:
        one = inspect.unwrap(waiting.pop())
        if one in seen or not isinstance(one, FunctionType) or not one.__module__.startswith("pie_control"):
            continue
        seen.add(one)
        found |= _documented(one) & CODES.keys()
        tree = ast.parse(textwrap.dedent(inspect.getsource(one)))
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                found |= {ast.unparse(node.exc.func)} & CODES.keys()
            elif isinstance(node, ast.Call):
                waiting += [_resolved(node.func, one)]
    return frozenset(found)


def _documented(function: FunctionType) -> set[str]:
    said = re.search(r"[Rr]aises? ([^.]*)", inspect.getdoc(function) or "")
    return set(re.findall(r"\b[A-Z]\w+", said[1])) if said else set()


def _resolved(called: ast.expr, function: FunctionType) -> Any:
    """What an expression that is called is, as far as names tell."""
    match called:
        case ast.Name(id=name):
            return function.__globals__.get(name)
        case ast.Attribute(value=ast.Name(id=name), attr=attribute):
            owner = function.__globals__.get(name)
            known = owner if isinstance(owner, ModuleType) else KNOWN.get(name)
            return getattr(known, attribute, None)
        case ast.Attribute(value=ast.Attribute(attr=name), attr=attribute):
            return getattr(KNOWN.get(name), attribute, None)
    return None
