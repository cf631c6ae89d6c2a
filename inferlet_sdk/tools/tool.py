"""A typed function as a tool: its declaration, and its arguments."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, Generic, ParamSpec, TypeVar, overload

from inferlet_sdk.errors import Cancelled
from inferlet_sdk.schemas.json_values import parse_json
from inferlet_sdk.schemas.mismatch import SchemaMismatch, UnsupportedType
from inferlet_sdk.schemas.shapes import Described, Field, Record, Shape, takes
from inferlet_sdk.schemas.types import record_of
from inferlet_sdk.schemas.writing import one_level
from inferlet_sdk.tools.docstring import read_docstring
from inferlet_sdk.tools.events import Written
from inferlet_sdk.traits.arguments import text as checked_text
from inferlet_sdk.traits.arguments import wrong

P = ParamSpec("P")
R = TypeVar("R")

_NAME = re.compile(r"[A-Za-z_][\w-]{0,63}", re.ASCII)


class Tool(Generic[P, R]):
    """A function that a model may call: `name`, `description` and parameters come from its signature and docstring. It
    is called as the function is."""

    def __init__(
        self,
        function: Callable[P, R],
        name: str | None = None,
        description: str | None = None,
        parameters: Record | None = None,
    ) -> None:
        """`parameters`: of a function whose signature does not tell them."""
        if not callable(function):
            raise wrong("tool", "a function", function)
        told = read_docstring(inspect.getdoc(function) or "")
        self.function = function
        self.name = _checked_name(getattr(function, "__name__", "") if name is None else checked_text(name, "name"))
        self.description: str = told.description if description is None else checked_text(description, "description")
        self.parameters: Record = parameters or _parameters(self.name, function, told.parameters)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Tool {self.signature}>"

    @property
    def signature(self) -> str:
        """Name and parameters, as in "add(a, b)"."""
        return f"{self.name}({', '.join(field.name for field in self.parameters.fields)})"

    @property
    def declaration(self) -> dict[str, Any]:
        """What chat templates take as one of `tools`."""
        schema = self.parameters.schema()
        described = {"name": self.name, "description": self.description, "parameters": schema}
        return {"type": "function", "function": described}

    def bind(self, arguments: dict[str, Any] | list[Any]) -> dict[str, Any]:
        """Arguments from JSON, checked, by name; a list has them in the order of the parameters. Raises
        SchemaMismatch."""
        if isinstance(arguments, list):
            names = [field.name for field in self.parameters.fields]
            if len(arguments) > len(names):
                raise SchemaMismatch(f"{self.signature} takes {len(names)} arguments, not {len(arguments)}")
            arguments = dict(zip(names, arguments, strict=False))
        shapes = {field.name: field.shape for field in self.parameters.fields}
        arguments = {name: typed_value(shapes.get(name), value) for name, value in arguments.items()}
        bound: dict[str, Any] = self.parameters.read(arguments, ())
        return bound

    async def run(self, arguments: dict[str, Any]) -> Any:
        """What the function gives for arguments by name. Raises Cancelled if something that it waits for was cancelled,
        and not the task that runs it."""
        try:
            value: Any = self.function(**arguments)  # type: ignore[call-arg]  # they are checked
            return await value if inspect.isawaitable(value) else value
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            raise Cancelled(f"what {self.name} waited for was cancelled") from None


@overload
def tool(function: Callable[P, R]) -> Tool[P, R]: ...
@overload
def tool(*, name: str | None = None, description: str | None = None) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(function: Any = None, *, name: str | None = None, description: str | None = None) -> Any:
    """Makes a function a tool, as a decorator: `@tool`, or `@tool(name=..., description=...)`. The description comes
    from the docstring, the parameters from the annotations, and what they mean from a section "Args:".

        @tool
        def weather(city: str, unit: Literal["C", "F"] = "C") -> str:
            '''Tells the weather in a city.

            Args:
                city: its name in English
            '''
    """
    if function is None:
        return lambda wrapped: Tool(wrapped, name, description)
    return Tool(function, name, description)


def as_tool(given: object) -> Tool[..., Any]:
    """A Tool, also from a plain function."""
    if isinstance(given, Tool):
        return given
    if not callable(given):
        raise wrong("tools", "functions with annotations, or what `@tool` made of them", given)
    return Tool(given)


def _is_cancelled() -> bool:
    """Whether the task that runs now was told to end."""
    task = asyncio.current_task() if asyncio._get_running_loop() is not None else None
    return task is not None and task.cancelling() > 0


def typed_value(shape: Shape | None, value: object) -> object:
    """The JSON value that a written argument stands for: a text where the parameter takes texts, else what it reads
    as. `None`, `True` and `False` are read as well: models write them."""
    if not isinstance(value, Written):
        return value
    text = str(value)
    word = text.strip()
    if shape is None:
        return text
    for option in (None, text) if word in ("null", "None") else (text,):
        if takes(shape, option):
            return option
    try:
        return parse_json({"True": "true", "False": "false", "None": "null"}.get(word, word))
    except SchemaMismatch:
        return text


def _checked_name(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise ValueError(
            f"name: {name!r} cannot be a tool's: take letters, digits and underscores, as in `@tool(name='add')`"
        )
    return name


def _parameters(name: str, function: Callable[..., Any], told: dict[str, str]) -> Record:
    try:
        hints = typing.get_type_hints(_annotated(function), include_extras=True)
    except (NameError, TypeError, SyntaxError) as error:
        raise UnsupportedType(f"{name}: its annotations cannot be read: {error}") from None
    fields: dict[str, tuple[object, object]] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UnsupportedType(f"{name}: a tool cannot have a parameter like `{parameter}`: give it by name")
        if parameter.name == "self" and not fields:
            raise UnsupportedType(
                f"{name}: a method is a tool with its object alone: `Tools(thing.{name})`, and no @tool"
            )
        if parameter.name not in hints:
            raise UnsupportedType(
                f"{name}: parameter {parameter.name!r} has no annotation, as in `{parameter.name}: int`"
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], default)
    record = record_of(name, fields)
    return replace(record, fields=[_with_docs(field, told.get(field.name, "")) for field in record.fields])


def _annotated(function: Callable[..., Any]) -> Any:
    """Where the annotations are: of an object that can be called, its `__call__`."""
    return function if inspect.isroutine(function) else type(function).__call__


def _with_docs(field: Field, text: str) -> Field:
    if not text or isinstance(field.shape, Described):
        return field
    return Field(field.name, Described(field.shape, {"description": text}), field.required, field.default)


def as_text(value: object) -> str:
    """What a tool gave, as the model reads it: text as it is, anything else as JSON. Raises TypeError for what says
    nothing as a text, such as bytes or a function."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=_as_json)


def _as_json(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    if (shallow := one_level(value)) is not value:
        return shallow  # as the model would write it
    kind = type(value)
    says_nothing = "__str__" not in _own(kind) and "__repr__" not in _own(kind)
    says_nothing = says_nothing or inspect.isgenerator(value) or inspect.isasyncgen(value)
    if says_nothing or isinstance(value, bytes | bytearray) or callable(value) or inspect.isawaitable(value):
        raise TypeError(f"a tool gave {kind.__name__}, which a model cannot read: return text, or what JSON has")
    return str(value)


def _own(kind: type) -> set[str]:
    """Names that a class, or one that it is derived from, defines itself."""
    return {name for base in kind.__mro__[:-1] for name in vars(base)}
