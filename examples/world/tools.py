"""The tools of the world, each declared once by its signature and docstring, for plain HTTP and MCP alike."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from examples.world.village import NUMBER, Relation, Village
from inferlet_sdk.schemas.types import record_of
from inferlet_sdk.tools.tool import Tool, as_tool

MOST_KEPT = 10_000
"""Entries of the memory, the calendar and the mail, each."""
LONGEST = 1000
"""Characters of a text that a tool takes."""
FLOOD_BYTES = 10 << 20
LARGEST_NUMBER = 10**30

WEATHERS = ("sunny", "cloudy", "rainy", "windy", "snowy", "foggy")


class ToolFailed(Exception):
    """What a tool cannot do, as a sentence for whoever called it."""


_OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def compute(expression: str) -> str:
    """The value of sums, differences, products and quotients. Raises ToolFailed."""
    try:
        value = _value(ast.parse(_checked(expression).strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ToolFailed(f"{expression[:40]!r} is no sum: write one as in (12 + 30) * 2") from None
    except ZeroDivisionError:
        raise ToolFailed("nothing can be divided by 0") from None
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _value(node: ast.expr) -> int | float:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            found: int | float = value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            found = -_value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            found = _OPERATORS[type(op)](_value(left), _value(right))
        case _:
            raise ValueError("only + - * / // % and brackets")
    if abs(found) > LARGEST_NUMBER:
        raise ToolFailed("the result is too large")
    return found


def _checked(text: str) -> str:
    if len(text) > LONGEST:
        raise ToolFailed(f"that are {len(text)} characters, and {LONGEST} are read at most: say it shorter")
    return text


class Toolbox:
    """All tools over one village, and what they remember."""

    def __init__(self, village: Village, bad: bool = False) -> None:
        """`bad`: with tools that answer what nobody can use."""
        self._village = village
        self._memory: dict[str, str] = {}
        self._calendar: dict[str, list[str]] = {}
        self._mail: dict[str, list[str]] = {}
        given: list[Callable[..., Any]] = [
            self.search,
            self.page,
            self.calculator,
            self.add_event,
            self.events,
            self.remember,
            self.recall,
        ]
        given += [self.send_mail, self.inbox, self.weather, self.population]
        given += [self.garbage, self.flood, self.liar] if bad else []
        tools = [*map(as_tool, given), *map(self._relation, village.relations.values())]
        self.tools: Mapping[str, Tool[..., Any]] = {one.name: one for one in tools}

    def _relation(self, relation: Relation) -> Tool[..., Any]:
        def look_up(**subject: str) -> str:
            return self._village.look_up(relation.name, *subject.values())

        parameters = record_of(relation.name, {"x" if relation.to == NUMBER else relation.of: (str, ...)})
        return Tool(look_up, relation.name, f"tells the {relation.words}", parameters)

    def search(self, query: str) -> str:
        """finds the titles of pages"""
        return "; ".join(self._village.search(_checked(query))) or "nothing found"

    def page(self, title: str) -> str:
        """gives the text of a page"""
        return self._village.page(title)

    def calculator(self, expression: str) -> str:
        """computes a sum, such as (12 + 30) * 2"""
        return compute(expression)

    def add_event(self, day: str, text: str) -> str:
        """writes an event into the calendar"""
        return _kept(self._calendar, day, text, f"{text} is on {day}")

    def events(self, day: str) -> str:
        """tells the events of a day"""
        return "; ".join(self._calendar.get(_key(day), ())) or f"there is nothing on {day}"

    def remember(self, key: str, value: str) -> str:
        """keeps a value"""
        if len(self._memory) >= MOST_KEPT and _key(key) not in self._memory:
            raise ToolFailed(f"{MOST_KEPT} values are kept, and there is no room: take a key that is there")
        self._memory[_key(key)] = _checked(value)
        return "ok"

    def recall(self, key: str) -> str:
        """gives a value that was kept"""
        if _key(key) not in self._memory:
            raise ToolFailed(f"nothing was kept as {key[:40]!r}")
        return self._memory[_key(key)]

    def send_mail(self, person: str, text: str) -> str:
        """sends a mail to a person; nobody has to wait for it"""
        return _kept(self._mail, person, text, "sent")

    def inbox(self, person: str) -> str:
        """reads the mail of a person"""
        return "; ".join(self._mail.get(_key(person), ())) or f"{person} has no mail"

    def weather(self, city: str) -> str:
        """tells the weather in a city"""
        number = self._village.number("weather", _checked(city))
        return f"{WEATHERS[number % len(WEATHERS)]}, {number // 8 % 36} degrees"

    def population(self, city: str) -> str:
        """tells how many people live in a city"""
        return str(1000 + self._village.number("population", _checked(city)) % 9000)

    def garbage(self) -> bytes:
        """answers what is no text"""
        return bytes(range(128, 256)) * 4

    def flood(self) -> bytes:
        """answers 10 MiB"""
        return b"flood " * (FLOOD_BYTES // 6)

    def liar(self) -> int:
        """promises a number over MCP, and gives a text"""
        return 7


def _key(text: str) -> str:
    return _checked(text).strip().lower()


def _kept(kept: dict[str, list[str]], key: str, text: str, answer: str) -> str:
    if sum(map(len, kept.values())) >= MOST_KEPT:
        raise ToolFailed(f"{MOST_KEPT} entries are kept, and there is no room for more: start the world anew")
    kept.setdefault(_key(key), []).append(_checked(text))
    return answer
