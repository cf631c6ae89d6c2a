"""Words of a command line, and values that a client has sent, become the arguments of `main`; what it takes is told.

| parameter | words |
|---|---|
| any | `points=5`, `--points 5`, `--points=5`; those that may stand without a name: plain words in order |
| `bool` | `--loud`, `--no-loud`, `--loud=false` |
| `list[int]`, `tuple`, ... | `1,2`, or the option several times, or JSON: `[1, 2]` |
| `Literal`, `Enum` | one of the values |
| `dict`, a dataclass, ... | JSON |
| `*words`, `**rest` | words that are left, and options that no parameter has |

Behind `--` all are plain words.
"""

from __future__ import annotations

import enum
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

from inferlet_sdk.schemas.json_values import parse_json
from inferlet_sdk.schemas.mismatch import SchemaMismatch, UnsupportedType, mismatch
from inferlet_sdk.schemas.shapes import Anything, Array, Described, Moment, OneValue, Scalar, Shape, Tuple, Union
from inferlet_sdk.schemas.types import SCALARS, shape_of


class UsageError(Exception):
    """The arguments do not fit the program."""


WORDS, REST = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
NONE: Any = inspect.Parameter.empty
BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
ANY = Anything()
TEXT = Scalar(str, "string", "a string")
_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class Parameter:
    """One parameter of `main`: what it takes as a value, and what as a word. Its types are read when they are needed:
    most launches give few of the parameters."""

    def __init__(self, name: str, kind: Any, default: Any, annotation: Any, names: dict[str, Any]) -> None:
        self.name = name
        self.kind = kind
        self.default = default
        self.is_required = default is NONE and kind not in (WORDS, REST)
        self._annotation = annotation
        self._names = names  # that annotations may use

    @cached_property
    def shape(self) -> Shape:
        return ANY if self._hint is NONE else _shape(self._hint)

    @cached_property
    def of_words(self) -> Shape:
        if self._hint is not NONE:
            return self.shape
        return _shape(type(self.default)) if isinstance(self.default, bool | int | float) else TEXT

    @cached_property
    def _hint(self) -> Any:
        if isinstance(self._annotation, type) and self._annotation in SCALARS:
            return self._annotation
        annotated = types.SimpleNamespace(__annotations__={self.name: self._annotation})
        try:
            return typing.get_type_hints(annotated, self._names, include_extras=True)[self.name]
        except Exception:  # an annotation with an unknown name: its argument stays text
            return NONE

    @property
    def type(self) -> str:
        """The type as the usage text shows it."""
        plain = _plain(self.of_words)
        if isinstance(plain, OneValue):
            return "|".join(str(value) for value, _ in plain.values)
        if self._annotation is not NONE:
            return inspect.formatannotation(self._annotation).strip("'").removesuffix(" | None")
        return plain.kind.__name__ if isinstance(plain, Scalar) else "str"

    @property
    def is_flag(self) -> bool:
        return isinstance(self.of_words, Scalar) and self.of_words.kind is bool

    @property
    def is_list(self) -> bool:
        return isinstance(_plain(self.of_words), Array)

    def read(self, value: Any, name: str = "") -> Any:
        """What a value that the client has sent is for the program. `name`: of an option that `**rest` gets. Raises
        UsageError."""
        return _checked(name or self.name, lambda: self.shape.read(value, ()))

    def parse(self, words: Sequence[str], name: str = "") -> Any:
        """What words are, of which only a list takes several. `name`, errors: as of `read`."""
        shape = _plain(self.of_words)
        if len(words) > 1 and isinstance(shape, Array):
            return _checked(name or self.name, lambda: shape.make([x for word in words for x in _items(word, shape)]))
        return _checked(name or self.name, lambda: _parse(words[0], self.of_words))

    def __str__(self) -> str:
        if self.kind is WORDS:
            return f"[{self.name} ...]"
        if self.kind is REST:
            return "[NAME=VALUE ...]"
        shown = f"{self.name}={self.type}"
        return shown if self.is_required else f"[{shown}]"


def _checked(name: str, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except SchemaMismatch as error:
        where = "".join(f"[{step!r}]" for step in error.path)
        raise UsageError(f"{name}{where}: {error.reason}") from None


@lru_cache(1)  # an instance may be launched many times
def parameters_of(function: Callable[..., Any]) -> list[Parameter]:
    """All but the first one, which is `args`."""
    names = getattr(inspect.unwrap(function), "__globals__", {})
    found = [Parameter(*one, names) for one in _declared(function)]
    return found[0 if found and found[0].kind is WORDS else 1 :]


def _declared(function: Callable[..., Any]) -> list[tuple[str, Any, Any, Any]]:
    """Names, kinds, defaults and annotations. Those of a plain function are read from its code: `inspect.signature`
    would take a fifth of a launch."""
    if not isinstance(function, types.FunctionType) or hasattr(function, "__wrapped__"):
        signature = inspect.signature(function)
        return [(one.name, one.kind, one.default, one.annotation) for one in signature.parameters.values()]
    code = function.__code__
    names, count, by_name = code.co_varnames, code.co_argcount, code.co_kwonlyargcount
    kinds: list[Any] = [BY_PLACE[place >= code.co_posonlyargcount] for place in range(count)]
    kinds += [inspect.Parameter.KEYWORD_ONLY] * by_name
    defaults = dict(zip(names[:count][::-1], (function.__defaults__ or ())[::-1], strict=False))
    defaults |= function.__kwdefaults__ or {}
    for flag, kind in ((inspect.CO_VARARGS, WORDS), (inspect.CO_VARKEYWORDS, REST)):
        if code.co_flags & flag:
            kinds.append(kind)
    return [
        (name, kind, defaults.get(name, NONE), function.__annotations__.get(name, NONE))
        for name, kind in zip(names, kinds, strict=False)
    ]


# ---- binding ---------------------------------------------------------------------------------------------------------


class Binding:
    """Arguments of one call."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self._named = {one.name: one for one in parameters if one.kind not in (WORDS, REST)}
        self._words = next((one for one in parameters if one.kind is WORDS), None)
        self._rest = next((one for one in parameters if one.kind is REST), None)
        self._given: dict[str, Any] = {}
        self._said: dict[str, list[str]] = {}  # words that belong to a parameter
        self._left: list[Any] = []  # what `*words` gets

    def take(self, argv: Sequence[str], values: Mapping[int, Any], kwargs: Mapping[str, Any]) -> None:
        """Takes words, of which some stand for values, and values by name. Raises UsageError."""
        for name, value in kwargs.items():
            self._given[name] = self._owner(name, f"main has no parameter {name!r}").read(value, name)
        items, place = list(argv), 0
        only_words = False
        while items:
            before = len(items)
            if place in values:
                items.pop(0)
                self._take_value(values[place])
            elif items[0] == "--" and not only_words:
                items.pop(0)
                only_words = True
            elif only_words or not self._take_option(items):
                self._take_word(items.pop(0))
            place += before - len(items)
        for name, words in self._said.items():
            self._given[name] = self._owner(name, "").parse(words, name)

    def _owner(self, name: str, complaint: str, dashes: str = "") -> Parameter:
        owner = self._named.get(name) or self._rest
        if owner is None:
            close = self._nearest(name, 0.6)
            raise UsageError(f"{complaint}; do you mean {dashes}{close}?" if close else complaint)
        return owner

    def _nearest(self, name: str, least: float) -> str:
        """The parameter whose name is as like it as that, from 0 to 1."""
        from difflib import get_close_matches

        return next(iter(get_close_matches(name, self._named, 1, least)), "")

    def _take_option(self, items: list[str]) -> bool:
        """Takes `--name value`, `--name=value` or `name=value` off the items."""
        item, is_option = items[0], items[0].startswith("--")
        name, equals, text = item.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        of_rest = self._rest is not None and name.isidentifier()
        if not is_option and not (equals and (name in self._named or of_rest)):
            if equals and name.isidentifier() and (close := self._nearest(name, 0.75)):
                raise UsageError(f"unknown argument {item}; do you mean {close}=? All behind `--` are plain words")
            return False
        items.pop(0)
        denied = self._named.get(name.removeprefix("no_")) if name.startswith("no_") else None
        if name not in self._named and denied is not None and denied.is_flag and not equals:
            self._say(denied.name, "false")
            return True
        owner = self._owner(name, f"unknown option {item}", "--")
        if not equals:
            text = self._value_of(owner, name, items)
        self._say(name, text)
        return True

    def _value_of(self, owner: Parameter, name: str, items: list[str]) -> str:
        if owner.is_flag and (not items or items[0].lower() not in _BOOLEANS):
            return "true"
        if not items or items[0].startswith("--"):
            raise UsageError(f"--{name} needs a value; one that begins with -- is given by --{name}=VALUE")
        return items.pop(0)

    def _say(self, name: str, text: str) -> None:
        said = self._said.setdefault(name, [])
        if name in self._given or (said and not self._owner(name, "").is_list):
            raise UsageError(f"{name} is given twice")
        said.append(text)

    def _take_word(self, word: str) -> None:
        free = self._next_by_place()
        if free is not None:
            self._said[free.name] = [word]
        elif self._words is not None:
            self._left.append(self._words.parse([word]))
        else:
            raise UsageError(f"unexpected argument {word!r}")

    def _take_value(self, value: Any) -> None:
        free = self._next_by_place()
        if free is not None:
            self._given[free.name] = free.read(value)
        elif self._words is not None:
            self._left.append(self._words.read(value))
        else:
            raise UsageError(f"unexpected argument {value!r}")

    def _next_by_place(self) -> Parameter | None:
        taken = self._given.keys() | self._said.keys()
        return next((one for one in self._named.values() if one.kind in BY_PLACE and one.name not in taken), None)

    def call(self, function: Callable[..., Any], args: object) -> Callable[[], Any]:
        """The function with its arguments. Raises UsageError if some are missing."""
        missing = [one.name for one in self._named.values() if one.is_required and one.name not in self._given]
        if missing:
            raise UsageError(f"missing: {', '.join(missing)}")
        given = dict(self._given)
        by_place = [one for one in self._named.values() if one.kind in BY_PLACE]
        placed = [given.pop(one.name) if one.name in given else one.default for one in by_place]
        return lambda: function(args, *placed, *self._left, **given)


# ---- words -----------------------------------------------------------------------------------------------------------


def _shape(hint: Any) -> Shape:
    try:
        return shape_of(hint)
    except UnsupportedType:  # the program may know what to do with it
        return ANY


def _plain(shape: Shape) -> Shape:
    """A shape without its description, and without None."""
    if isinstance(shape, Described):
        return _plain(shape.inner)
    if isinstance(shape, Union):
        options = [one for one in shape.options if not (isinstance(one, Scalar) and one.kind is types.NoneType)]
        return _plain(options[0]) if len(options) == 1 else Union(options)
    return shape


def _parse(word: str, shape: Shape) -> Any:
    """The value for a word. Raises SchemaMismatch."""
    shape = _plain(shape)
    if isinstance(shape, Anything):
        return word
    if isinstance(shape, Scalar):
        return _scalar(word, shape)
    if isinstance(shape, Moment):
        return shape.read(word, ())
    if isinstance(shape, OneValue):
        return _one_of(word, shape)
    if isinstance(shape, Union):
        return _first_that_takes(word, shape)
    if isinstance(shape, Array):
        return shape.make(_items(word, shape))
    if isinstance(shape, Tuple) and not word.lstrip().startswith("["):
        parts = [part.strip() for part in word.split(",")]
        if len(parts) != len(shape.items):
            raise mismatch((), shape.wanted, word)
        return tuple(map(_parse, parts, shape.items))
    return shape.read(parse_json(word), ())


def _scalar(word: str, shape: Scalar) -> Any:
    try:
        if shape.kind is bool:
            return _BOOLEANS[word.lower()]
        return shape.kind(word)
    except (ValueError, KeyError, TypeError):
        raise mismatch((), shape.wanted, word) from None


def _one_of(word: str, shape: OneValue) -> Any:
    for value, meaning in shape.values:
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        if word == shown or (isinstance(meaning, enum.Enum) and word == meaning.name):
            return meaning
    raise mismatch((), shape.wanted, word)


def _first_that_takes(word: str, shape: Union) -> Any:
    for option in shape.options:
        try:
            return _parse(word, option)
        except SchemaMismatch:
            continue
    raise mismatch((), shape.wanted, word)


def _items(word: str, shape: Array) -> list[Any]:
    if word.lstrip().startswith("["):
        found = parse_json(word)
        return [shape.item.read(one, (place,)) for place, one in enumerate(found)]
    return [_parse(part.strip(), shape.item) for part in word.split(",")] if word else []


# ---- usage -----------------------------------------------------------------------------------------------------------


def usage(program: str, parameters: Sequence[Parameter]) -> str:
    """One line that says what the program takes."""
    return " ".join(["usage:", program, *map(str, parameters)])


def help_text(function: Callable[..., Any], program: str, parameters: Sequence[Parameter]) -> str:
    """What `--help` shows: the usage, the docstring, each parameter with its type and default."""
    lines = [usage(program, parameters), *filter(None, [inspect.getdoc(function)]), ""]
    width = max((len(one.name) for one in parameters), default=0)
    for one in parameters:
        default = "" if one.default is NONE else f" (default: {_shown(one.default)})"
        lines.append(f"  {one.name:{width}}  {one.type}{default}{_REMARKS.get(one.kind, '')}")
    return "\n".join([*lines, "", _HOW, ""])


_REMARKS: dict[Any, str] = {
    WORDS: "; all words that are left",
    REST: "; all other options",
    inspect.Parameter.KEYWORD_ONLY: "; by name",
}
_HOW = """Give NAME=VALUE, --NAME VALUE, or plain words in this order; --NAME and --no-NAME for true and false;
1,2,3 for a list."""


def _shown(value: Any) -> str:
    return str(value.value) if isinstance(value, enum.Enum) else repr(value)
