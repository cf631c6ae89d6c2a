"""Checks at start that our raw conversion of values agrees with wasmtime-py's own on this machine, and that copies can
be bounded.

A tiny component passes its arguments to the host and returns the host's answer. The test calls it through wasmtime-py's
public conversion, and the host answers through ours, so a difference in layout shows in either direction.
"""

from __future__ import annotations

from typing import Any

import wasmtime
from wasmtime import component

from ..errors import NotFound
from . import copy_bound
from .compiled.crossings import Crossings
from .engine import LinkError, address_of
from .functions import HostFunction, add_function, run_guest_of

NUMBERS = [0, 1, 7, 0xFFFF_FFFF, *range(300)]
TEXT = "Grüße, 世界"

_ERROR = """(type $e (record (field "code" string) (field "message" string))) (export "error" (type $error (eq $e)))"""
_TYPE = """(param "n" u32) (param "numbers" (list u32)) (param "text" string)
           (result (result (tuple (list u32) string) (error $error)))"""
_ECHO = f"""
(component
  (import "host" (instance $host {_ERROR} (export "echo" (func {_TYPE}))))
  (alias export $host "error" (type $error))
  (core module $memory
    (memory (export "memory") 1)
    (global $next (mut i32) (i32.const 1024))
    (func (export "realloc") (param i32 i32 i32 i32) (result i32)
      (local $at i32)
      (local.set $at (i32.and (i32.add (global.get $next) (i32.const 7)) (i32.const -8)))
      (global.set $next (i32.add (local.get $at) (local.get 3)))
      (local.get $at)))
  (core instance $memory (instantiate $memory))
  (core func $echo (canon lower (func $host "echo")
    (memory (core memory $memory "memory")) (realloc (core func $memory "realloc"))))
  (core module $main
    (import "host" "echo" (func $echo (param i32 i32 i32 i32 i32 i32)))
    (func (export "go") (param i32 i32 i32 i32 i32) (result i32)
      (call $echo (local.get 0) (local.get 1) (local.get 2) (local.get 3) (local.get 4) (i32.const 512))
      (i32.const 512)))
  (core instance $main (instantiate $main (with "host" (instance (export "echo" (func $echo))))))
  (func (export "go") {_TYPE} (canon lift (core func $main "go")
    (memory (core memory $memory "memory")) (realloc (core func $memory "realloc")))))
"""


def self_test(engine: wasmtime.Engine, crossings: Crossings | None = None) -> None:
    """Raises LinkError if raw and public conversion of values disagree: the raw one of Python, and the compiled one."""
    echo = component.Component(engine, _ECHO)
    linker, _kept = _tested(engine, echo, None)
    if crossings is not None:
        _tested(engine, echo, crossings)
    copy_bound.use(_bound_that_works(engine, linker, echo))


def _tested(engine: wasmtime.Engine, echo: component.Component, way: Crossings | None) -> tuple[component.Linker, Any]:
    """A linker with the host's function, and what must outlive it."""
    heard: list[Any] = []

    def answer(_owner: Any, number: int, numbers: list[int], text: str) -> tuple[list[int], str]:
        heard.append((number, numbers, text))
        if not number:
            raise NotFound(text)
        return numbers, text

    linker = component.Linker(engine)
    interface: Any = echo.type.imports(engine)["host"].ty
    with linker.root() as root, root.add_instance("host") as host:
        kept = add_function(host, "echo", HostFunction(answer), interface.exports(engine)["echo"].ty, way)
    for number in (7, 0):
        returned = run_guest_of(engine, linker, echo, "go", number, NUMBERS, TEXT)
        if heard.pop() != (number, NUMBERS, TEXT) or not _matches(returned, number):
            raise LinkError("raw and public conversion of WebAssembly values disagree: please report this")
    return linker, kept


def _bound_that_works(engine: wasmtime.Engine, linker: component.Linker, echo: component.Component) -> int | None:
    """Where stores keep the bound of copies; None if it was not found, or has no effect."""
    offset = copy_bound.find(engine)
    if offset is None:
        return None
    try:
        run_guest_of(
            engine, linker, echo, "go", 7, NUMBERS, TEXT,
            prepare=lambda store: copy_bound.bound_copies(address_of(store._context()), len(NUMBERS), offset),
        )  # fmt: skip
    except wasmtime.WasmtimeError as error:
        return offset if copy_bound.MESSAGE in str(error) else None
    return None


def _matches(returned: Any, number: int) -> bool:
    value = getattr(returned, "payload", returned)
    if number:
        return bool(value == (NUMBERS, TEXT))
    return (value.code, value.message) == (NotFound.code, TEXT)
