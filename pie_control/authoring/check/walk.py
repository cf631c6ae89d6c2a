"""Walks through a module and infers what the values are that come from the SDK."""

from __future__ import annotations

import ast
import asyncio
import builtins
import importlib
from collections import ChainMap
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from inferlet_sdk.generation.generation import Generation
from inferlet_sdk.guest.arguments import Args

from .findings import meant
from .kinds import SDK, Value, attribute, called, is_awaitable, is_of_sdk, signature_error

Names = MutableMapping[str, Value | None]
Told = tuple[Any, str, str]
"""A node, a message and advice."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
Bind = Callable[[str, Value | None], None]
"""Notes what a name is from here on."""

MODULES = ("asyncio", "time", "threading", "subprocess", "socket", "concurrent.futures", "urllib", "urllib.request")
BLOCKING = {
    ("time", "sleep"): ("blocks the whole program, all of its tasks", "write `await asyncio.sleep(seconds)`"),
    ("asyncio", "run"): ("cannot run inside of a coroutine: the event loop runs already", "write `await` instead"),
    ("asyncio", "to_thread"): ("fails: an inferlet has no threads", "call the function directly"),
}
"""In an `async def`."""
_NO_THREADS = ("fails: an inferlet has no threads", "use `asyncio.create_task` or `gather`")
_NO_PROCESSES = ("fails: an inferlet has no processes", "do it in a client of the inferlet")
_NO_SOCKETS = ("fails: an inferlet has no sockets", "use `http_get` and `http_post` of inferlet_sdk")
NEVER = {
    ("threading", "Thread"): _NO_THREADS,
    ("concurrent", "ThreadPoolExecutor"): _NO_THREADS,
    **{("subprocess", name): _NO_PROCESSES for name in ("run", "Popen", "call", "check_call", "check_output")},
    **{("socket", name): _NO_SOCKETS for name in ("socket", "create_connection")},
    ("urllib", "urlopen"): _NO_SOCKETS,
}
BUILTINS = {
    "input": ("fails: an inferlet has no stdin", "write `await args.receive()`: the next message of the client"),
    "open": ("fails: the sandbox has no files", "read data files of the program by `program_files()` of inferlet_sdk"),
    "breakpoint": ("fails: an inferlet has no terminal", "take it out, or use `pie run --native`"),
}
READERS = ("print", "str", "len", "int", "float", "repr", "sum", "list", "sorted", "max", "min")
"""Builtins that can do nothing with a coroutine."""


class Walk:
    """`run` gives what is wrong. `entries`: functions marked with @inferlet; `is_marked`: whether there is any, so
    that `main` is not the entry."""

    def __init__(self, tree: ast.Module, is_entry: bool = True) -> None:
        """`is_entry`: the module runs; it is no helper of one that does."""
        self._tree = tree
        self._is_entry = is_entry
        self.entries: list[Function] = []
        self.is_marked = False
        self._told: dict[tuple[int, int, str], Told] = {}
        self._results: set[Function] = set()  # functions whose result the client gets
        self._loud = False

    def run(self) -> Iterator[Told]:
        """A node, a message and advice for each mistake."""
        names: Names = {}
        self._scope(self._tree.body, names, function=None, top=True)
        yield from self._told.values()

    def _tell(self, node: ast.AST, message: str, advice: str) -> None:
        if self._loud:
            place: Any = node
            self._told.setdefault((place.lineno, place.col_offset, message), (node, message, advice))

    # ---- scopes ------------------------------------------------------------------------------------------------------

    def _scope(self, body: list[ast.stmt], names: Names, function: Function | None, top: bool = False) -> None:
        """Walks twice: first quietly, to see what each name is; one that is different things is unknown."""
        was = self._loud
        bound: dict[str, list[Value | None]] = {}
        self._loud = False
        for node in body:
            self._statement(node, names, bound, function, deep=False)
        for name, values in bound.items():
            names[name] = values[0] if all(value == values[0] for value in values) else None
        self._loud = was or top
        fixed: dict[str, list[Value | None]] = {}
        for node in body:
            self._statement(node, names, fixed, function, deep=True)
            for name in fixed:
                values = bound.get(name, [None])
                names[name] = values[0] if all(value == values[0] for value in values) else None
        self._loud = was

    def _statement(
        self, node: ast.stmt, names: Names, bound: dict[str, list[Value | None]], function: Function | None, deep: bool
    ) -> None:
        def bind(name: str, value: Value | None) -> None:
            bound.setdefault(name, []).append(value)
            names[name] = value

        self._own(node, names, bind, function, deep)
        if isinstance(node, Function | ast.ClassDef):
            return
        for field in ("body", "orelse", "finalbody"):
            for each in getattr(node, field, []):
                self._statement(each, names, bound, function, deep)
        for handler in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
            for each in ast.walk(handler):
                if isinstance(each, ast.MatchAs | ast.MatchStar | ast.ExceptHandler) and each.name:
                    bind(each.name, None)
            for each in handler.body:
                self._statement(each, names, bound, function, deep)

    def _own(self, node: ast.stmt, names: Names, bind: Bind, function: Function | None, deep: bool) -> None:
        """A statement without those within it."""

        def bind_target(target: ast.expr, value: Value | None) -> None:
            if isinstance(target, ast.Name):
                bind(target.id, value)
                return
            for each in ast.walk(target):
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                    bind(each.id, None)
            self._parts(target, names, function)

        match node:
            case ast.Import() | ast.ImportFrom():
                self._import(node, bind)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node, names, bind, deep)
            case ast.ClassDef():
                bind(node.name, None)
                if deep:
                    self._scope(node.body, ChainMap({}, names), None)
            case ast.Assign(targets=targets, value=expression):
                value = self.infer(expression, names, function)
                for target in targets:
                    bind_target(target, value)
            case ast.AnnAssign(target=target, value=expression):
                if expression is not None:
                    bind_target(target, self.infer(expression, names, function))
            case ast.AugAssign(target=target, value=expression):
                self.infer(expression, names, function)
                bind_target(target, None)
            case ast.With(items=items) | ast.AsyncWith(items=items):
                for item in items:
                    value = self.infer(item.context_expr, names, function)
                    if item.optional_vars is not None:
                        bind_target(item.optional_vars, value if value and value.kind == "instance" else None)
            case ast.For(target=target, iter=iterated):
                self._iterated(iterated, self.infer(iterated, names, function), function, is_async=False)
                bind_target(target, None)
            case ast.AsyncFor(target=target, iter=iterated):
                self._iterated(iterated, self.infer(iterated, names, function), function, is_async=True)
                bind_target(target, None)
            case ast.Expr(value=expression):
                self._unused(expression, self.infer(expression, names, function), function)
            case ast.Return(value=ast.expr() as expression):
                self._returned(expression, self.infer(expression, names, function), function)
            case _:
                self._parts(node, names, function)

    def _parts(self, node: ast.AST, names: Names, function: Function | None) -> None:
        """Expressions of a statement, or of an expression."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.infer(child, names, function)
            elif not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                self._parts(child, names, function)

    def _import(self, node: ast.Import | ast.ImportFrom, bind: Bind) -> None:
        for alias in node.names:
            if isinstance(node, ast.Import):
                module = _module(alias.name if alias.asname else alias.name.partition(".")[0])
                bind(alias.asname or alias.name.partition(".")[0], Value("object", module) if module else None)
                continue
            module = _module(node.module or "") if node.level == 0 else None
            if module is None:
                bind(alias.asname or alias.name, None)
            elif hasattr(module, alias.name):
                bind(alias.asname or alias.name, Value("object", getattr(module, alias.name)))
            else:
                found = _module(f"{node.module}.{alias.name}")
                bind(alias.asname or alias.name, Value("object", found) if found else None)
                if found is None and alias.name != "*" and is_of_sdk(module):
                    self._tell(node, f"{node.module} has no `{alias.name}`", meant(alias.name, dir(module)))
                if alias.name == "*":
                    for name in getattr(module, "__all__", ()):
                        bind(name, Value("object", getattr(module, name)))

    def _function(self, node: Function, names: Names, bind: Bind, deep: bool) -> None:
        bare = [one.func if isinstance(one, ast.Call) else one for one in node.decorator_list]
        marks = [self.infer(one, names, None) for one in bare]
        is_marked = any(map(_is_mark, marks))
        self.is_marked |= is_marked
        if is_marked and deep and self._loud:
            self.entries.append(node)
        is_coroutine = isinstance(node, ast.AsyncFunctionDef) and not node.decorator_list and not _yields(node)
        bind(node.name, Value("method", node, "own") if is_coroutine else None)
        if not deep:
            return
        inner: Names = {}
        spec = node.args
        for one in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg):
            if one is not None:
                given = self.infer(one.annotation, names, None) if one.annotation is not None else None
                known = given is not None and given.kind == "object" and isinstance(given.of, type)
                inner[one.arg] = Value("instance", given.of) if known and given and is_of_sdk(given.of) else None
        first = (*spec.posonlyargs, *spec.args)[:1]
        if is_marked or (node.name == "main" and self._runs_main() and node in self._tree.body):
            self._results.add(node)
            if first and first[0].annotation is None:
                inner[first[0].arg] = Value("instance", Args)
        self._scope(node.body, ChainMap(inner, names), node)

    # ---- expressions -------------------------------------------------------------------------------------------------

    def infer(self, node: ast.expr, names: Names, function: Function | None) -> Value | None:
        """What an expression is; None if that is not known."""
        match node:
            case ast.Name(id=name):
                return names.get(name)
            case ast.Attribute(value=base, attr=name):
                return self._attribute(node, self.infer(base, names, function), name)
            case ast.Call():
                return self._call(node, names, function)
            case ast.Await(value=awaited):
                return self._await(node, self.infer(awaited, names, function))
            case ast.Lambda():
                return None
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                self._comprehension(node, names, function)
                return None
            case ast.NamedExpr(target=target, value=value):
                found = self.infer(value, names, function)
                names[target.id] = found
                return found
            case ast.BinOp() | ast.Compare() | ast.FormattedValue() | ast.Subscript():
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self._read(child, self.infer(child, names, function), function)
                return None
        self._parts(node, names, function)
        return None

    def _comprehension(self, node: Any, names: Names, function: Function | None) -> None:
        inner: Names = ChainMap({}, names)
        for part in node.generators:
            self._iterated(part.iter, self.infer(part.iter, inner, function), function, is_async=bool(part.is_async))
            for each in ast.walk(part.target):
                if isinstance(each, ast.Name):
                    inner[each.id] = None
            for each in part.ifs:
                self.infer(each, inner, function)
        for field in ("elt", "key", "value"):
            if getattr(node, field, None) is not None:
                self.infer(getattr(node, field), inner, function)

    def _attribute(self, node: ast.expr, value: Value | None, name: str) -> Value | None:
        if value is None:
            return None
        if value.kind == "coroutine":
            if name not in ("close", "send", "throw"):
                self._tell(node, f"`.{name}` of what `{value.name}` gives needs an await", "write `(await ...).name`")
            return None
        found, there = attribute(value, name)
        if there is not None:
            of = value.of.__name__
            self._tell(node, f"{of} has no `{name}`", meant(name, there))
        return found

    def _call(self, node: ast.Call, names: Names, function: Function | None) -> Value | None:
        value = self.infer(node.func, names, function)
        self.is_marked |= _is_mark(value)  # inferlet(function)
        if function is None and isinstance(node.func, ast.Name) and node.func.id == "main" and self._has_main():
            self._tell(node, "the server calls `main`, with its `args`", "leave this call out")
            return None
        arguments = [*node.args, *(one.value for one in node.keywords)]
        given = [(one, self.infer(one, names, function)) for one in arguments]
        if isinstance(node.func, ast.Name) and node.func.id not in names and hasattr(builtins, node.func.id):
            if node.func.id in BUILTINS:
                self._tell(node, f"`{node.func.id}` {BUILTINS[node.func.id][0]}", BUILTINS[node.func.id][1])
            if node.func.id in READERS:
                for one, found in given:
                    self._read(one, found, function)
        if value is None:
            return None
        if value.owner == "own":
            return Value("coroutine", name=value.of.name)
        self._check_place(node, value, function)
        if is_of_sdk(value.of) and value.kind in ("object", "method"):
            error = signature_error(value, node)
            if error is not None:
                wrong, _, advice = error.partition("; ")
                self._tell(node, f"{value.of.__qualname__}: {wrong}", advice)
            for one, found in given:
                self._read(one, found, function)
        return called(value)

    def _runs_main(self) -> bool:
        return self._is_entry and not self.is_marked

    def _has_main(self) -> bool:
        return self._runs_main() and any(isinstance(each, Function) and each.name == "main" for each in self._tree.body)

    def _check_place(self, node: ast.Call, value: Value, function: Function | None) -> None:
        place = getattr(value.of, "__module__", None) or "", getattr(value.of, "__name__", "")
        top = place[0].partition(".")[0], place[1]
        if top in NEVER:
            self._tell(node, f"`{'.'.join(top)}` {NEVER[top][0]}", NEVER[top][1])
        if isinstance(function, ast.AsyncFunctionDef) and top in BLOCKING:
            self._tell(node, f"`{'.'.join(top)}` {BLOCKING[top][0]}", BLOCKING[top][1])

    # ---- awaiting ----------------------------------------------------------------------------------------------------

    def _await(self, node: ast.Await, value: Value | None) -> Value | None:
        if value is None:
            return None
        if value.kind == "coroutine":
            return value.gives
        if not is_awaitable(value):
            what = "a function that is not called" if value.kind == "method" else f"a {value.of.__name__}"
            advice = "iterate with `async for`, or write `await args.stream(...)`" if value.of is Generation else ""
            self._tell(node, f"`await` of {what}, which cannot be awaited", advice or "leave `await` out")
        return None

    def _read(self, node: ast.expr, value: Value | None, function: Function | None) -> None:
        """An expression whose value is used at once."""
        if value is not None and value.kind == "coroutine":
            self._tell(node, f"`{value.name}` is not awaited here", _how(function))

    def _unused(self, node: ast.expr, value: Value | None, function: Function | None) -> None:
        if value is not None and value.kind == "coroutine":
            self._tell(node, f"`{value.name}` is never awaited, so it does nothing", _how(function))
        elif value is not None and value.kind == "instance" and value.of is Generation:
            advice = "iterate with `async for`, or write `await ctx.generate_until(...)`"
            self._tell(node, "this generation is never used, so it does nothing", advice)

    def _returned(self, node: ast.expr, value: Value | None, function: Function | None) -> None:
        if value is None or function not in self._results:
            return
        if value.kind == "coroutine" and isinstance(function, ast.AsyncFunctionDef):
            self._tell(node, f"`{value.name}` is returned before it is awaited", _how(function))
        elif value == Value("instance", Generation):
            advice = "write `return await args.stream(...)`, or `await ctx.generate_until(...)`"
            self._tell(node, "a generation is no result: nothing has read its text", advice)

    def _iterated(self, node: ast.expr, value: Value | None, function: Function | None, *, is_async: bool) -> None:
        if value is None:
            return
        if value.kind == "coroutine":
            self._tell(node, f"`{value.name}` gives nothing to iterate over before it is awaited", _how(function))
        elif value == Value("instance", Generation) and not is_async and isinstance(function, ast.AsyncFunctionDef):
            self._tell(node, "a generation blocks here: this is an `async def`", "write `async for`")


def _how(function: Function | None) -> str:
    if isinstance(function, ast.FunctionDef):
        return f"make `{function.name}` an `async def`, and write `await` in front"
    return "write `await` in front"


def _is_mark(value: Value | None) -> bool:
    return value is not None and is_of_sdk(value.of) and getattr(value.of, "__name__", "") == "inferlet"


def _yields(node: Function) -> bool:
    """Whether it is an asynchronous generator; functions in it do not count, but mean only that less is said."""
    return any(isinstance(each, ast.Yield) for each in ast.walk(node))


def _module(name: str) -> Any:
    """A module of the SDK, or one that this check knows; never the program's."""
    if name in MODULES:
        return asyncio if name == "asyncio" else importlib.import_module(name)
    if name != SDK and not name.startswith(SDK + "."):
        return None
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
