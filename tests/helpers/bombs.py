"""Small components that are hard to compile."""

from __future__ import annotations

import random

import wasmtime

import tests.helpers.wat as wat


def slow(statements: int) -> bytes:
    """A component with a function whose compilation takes more than linear time: 8000 statements seconds, 32000 a
    minute or more."""
    draw = random.Random(1)

    def local() -> str:
        return f"(local.get {draw.randrange(500)})"

    body = "".join(
        f"(if (i64.eqz {local()}) (then (local.set {draw.randrange(500)} (i64.add {local()} {local()})) (br $again)))"
        for _ in range(statements)
    )
    function = f'(func (export "f") (param i64) {"(local i64)" * 500} (loop $again {body}))'
    text = wat.inferlet(wat.SUCCESS).decode()
    bomb = text.replace("(core module $Main", f"(core module $Bomb {function}) (core module $Main", 1)
    return bytes(wasmtime.wat2wasm(bomb.encode()))


def nested(depth: int) -> bytes:
    """About a kilobyte that instantiates 2 ** depth modules: with 22 it takes a gigabyte to compile."""
    text = '(component $c0 (core module $m (func (export "x"))) (core instance (instantiate $m)))'
    for level in range(1, depth + 1):
        text = f"(component $c{level} {text} {f'(instance (instantiate $c{level - 1}))' * 2})"
    return bytes(wasmtime.wat2wasm(f"(component {text} (instance (instantiate $c{depth})))".encode()))


def deep_types(depth: int) -> bytes:
    """A function whose parameter has 2 ** depth parts."""
    types = "".join(f"(type $t{level} (tuple $t{level - 1} $t{level - 1}))" for level in range(1, depth))
    text = f'(component (type $t0 (tuple u8 u8)) {types} (import "f" (func (param "x" $t{depth - 1}))))'
    return bytes(wasmtime.wat2wasm(text.encode()))
