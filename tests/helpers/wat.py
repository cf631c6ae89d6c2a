"""Small components in WebAssembly text: one that passes values through, and inferlets of the real world."""

from __future__ import annotations

from collections.abc import Sequence

MEMORY = """
  (core module $Memory
    (memory (export "memory") 256)
    (global $next (mut i32) (i32.const 4096))
    (func (export "realloc") (param i32 i32 i32 i32) (result i32)
      (local $at i32)
      (local.set $at (i32.and (i32.add (global.get $next) (i32.const 7)) (i32.const -8)))
      (global.set $next (i32.add (local.get $at) (local.get 3)))
      (local.get $at)))
  (core instance $memory (instantiate $Memory))
"""
OPTIONS = '(memory (core memory $memory "memory")) (realloc (core func $memory "realloc"))'


def echo(kind: str, flat: str, definition: str = "") -> str:
    """A component whose export `go` hands a value of a type to the import `echo` of `host`, and returns its answer.

    `flat` are the core types that the canonical ABI makes of the type; a record or enum, defined in `definition`, is
    named `$t`.
    """
    parts = flat.split()
    arguments = " ".join(f"(local.get {i})" for i in range(len(parts)))
    if len(parts) == 1:
        lowered, result = f"(param {flat}) (result {flat})", flat
        body = f"(call $echo {arguments})"
    else:
        lowered, result = f"(param {flat} i32)", "i32"
        body = f"(call $echo {arguments} (i32.const 512)) (i32.const 512)"
    named = f'(type $d {definition}) (export "t" (type $t (eq $d)))' if definition else ""
    alias = '(alias export $host "t" (type $t))' if definition else ""
    return f"""(component
  (import "host" (instance $host {named} (export "echo" (func (param "v" {kind}) (result {kind})))))
  {alias} {MEMORY}
  (core func $echo (canon lower (func $host "echo") {OPTIONS}))
  (core module $Main
    (import "host" "echo" (func $echo {lowered}))
    (func (export "go") (param {flat}) (result {result}) {body}))
  (core instance $main (instantiate $Main (with "host" (instance (export "echo" (func $echo))))))
  (func (export "go") (param "v" {kind}) (result {kind}) (canon lift (core func $main "go") {OPTIONS})))"""


CORE_FUNCTIONS = {
    "send": (
        '(func (param "to" u32) (param "message" string) (result (result (option u32) (error $error))))',
        "(param i32 i32 i32 i32)",
    ),
    "set-result": ('(func (param "value" string) (result (result (error $error))))', "(param i32 i32 i32)"),
    "receive": ('(func (param "source" u32) (result (result u32 (error $error))))', "(param i32 i32)"),
    "await-message": (
        '(func (param "future" u32) (result (result '
        "(option (tuple string string (list (tuple string u32)))) (error $error))))",
        "(param i32 i32)",
    ),
    "wait": ('(func (param "futures" (list u32)) (result (list u32)))', "(param i32 i32 i32)"),
    "sleep": ('(func (param "nanoseconds" u64) (result (result u32 (error $error))))', "(param i64 i32)"),
    "cancel": ('(func (param "future" u32) (result (result (error $error))))', "(param i32 i32)"),
}
"""Of core.wit: type, and what it is lowered to."""
VERSION = "0.3.0"


def types(version: str) -> str:
    """The import of `error` from types.wit."""
    return f"""
  (import "pie:inferlet/types@{version}" (instance $types
    (type $e (record (field "code" string) (field "message" string)))
    (export "error" (type $error (eq $e)))))
  (alias export $types "error" (type $error))
"""


def inferlet(
    run: str,
    functions: Sequence[str] = (),
    *,
    data: str = "",
    start: str = "",
    pages: int = 4,
    extra: str = "",
    kinds: dict[str, str] | None = None,
    version: str = VERSION,
) -> bytes:
    """A component of our world, built for a version of it. `run` and `start` are core instructions; `run` gives the
    address of its outcome, a result<_, string>. The imported `functions` of core are called by name: `(call $send
    ...)`. Address 16 is free for answers, `data` stands at 256, what the host hands over from 4096 on; zeros at 0 are
    a success."""
    described = {name: (kinds or {}).get(name, CORE_FUNCTIONS[name][0]) for name in functions}
    exports = " ".join(f'(export "{name}" {kind})' for name, kind in described.items())
    alias = '(alias outer 1 $error (type $e)) (export "error" (type $error (eq $e)))'
    core = f'(import "pie:inferlet/core@{version}" (instance $core {alias} {exports}))' if functions else ""
    lowered = "\n".join(f'(core func ${n} (canon lower (func $core "{n}") {OPTIONS}))' for n in functions)
    imports = "\n".join(f'(import "core" "{n}" (func ${n} {CORE_FUNCTIONS[n][1]}))' for n in functions)
    given = " ".join(f'(export "{n}" (func ${n}))' for n in functions)
    return f"""(component
  {types(version)} {core} {extra} {MEMORY.replace("256)", f"{pages})")} {lowered}
  (core module $Main
    (import "memory" "memory" (memory {pages}))
    {imports}
    (data (i32.const 256) "{data}")
    (func $start {start})
    (start $start)
    (func (export "run") (result i32) {run}))
  (core instance $main (instantiate $Main
    (with "memory" (instance $memory)) (with "core" (instance {given}))))
  (func (export "run") (result (result (error string))) (canon lift (core func $main "run") {OPTIONS})))""".encode()


SUCCESS = "(i32.const 0)"
FOREVER = "(loop $again (br $again))"
ECHO = (
    # receive; wait for it; take the message; send it; set it as the result
    """(call $receive (i32.const 0) (i32.const 16))
       (i32.store (i32.const 64) (i32.load (i32.const 20)))
       (call $wait (i32.const 64) (i32.const 1) (i32.const 32))
       (call $await-message (i32.load (i32.const 64)) (i32.const 80))
       (call $send (i32.const 0) (i32.load (i32.const 88)) (i32.load (i32.const 92)) (i32.const 128))
       (call $set-result (i32.load (i32.const 88)) (i32.load (i32.const 92)) (i32.const 128))
       (i32.const 0)""",
    ("receive", "wait", "await-message", "send", "set-result"),
)
"""An inferlet that echoes a message: instructions and functions."""


POLLING = f"""(component
  (import "wasi:io/poll@0.2.0" (instance $poll
    (export "pollable" (type $p (sub resource)))
    (export "poll" (func (param "in" (list (borrow $p))) (result (list u32))))))
  (alias export $poll "pollable" (type $pollable))
  (import "wasi:clocks/monotonic-clock@0.2.0" (instance $clock
    (alias outer 1 $pollable (type $pp)) (export "pollable" (type $p2 (eq $pp)))
    (export "subscribe-duration" (func (param "when" u64) (result (own $p2))))))
  {MEMORY}
  (core func $sleep (canon lower (func $clock "subscribe-duration")))
  (core func $poll (canon lower (func $poll "poll") {OPTIONS}))
  (core func $drop (canon resource.drop $pollable))
  (core module $Main
    (import "memory" "memory" (memory 1))
    (import "wasi" "sleep" (func $sleep (param i64) (result i32)))
    (import "wasi" "poll" (func $poll (param i32 i32 i32)))
    (import "wasi" "drop" (func $drop (param i32)))
    (func (export "run") (result i32) RUN))
  (core instance $main (instantiate $Main (with "memory" (instance $memory)) (with "wasi" (instance
    (export "sleep" (func $sleep)) (export "poll" (func $poll)) (export "drop" (func $drop))))))
  (func (export "run") (result (result (error string))) (canon lift (core func $main "run") {OPTIONS})))"""
"""A component that waits for timers of WASI; RUN stands for the instructions of `run`."""


def polling(run: str) -> bytes:
    """The component POLLING with these instructions."""
    return POLLING.replace("RUN", run).encode()
