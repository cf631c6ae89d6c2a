"""What Rust reads in the text of a model, and checks of arguments, is what Python does: both parts of the crate are
compiled for this machine, without a sandbox."""

from __future__ import annotations

import json
import random
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from inferlet_sdk.schemas.foreign import foreign_record
from inferlet_sdk.schemas.mismatch import SchemaMismatch
from inferlet_sdk.tools.events import Call, Malformed, Text
from inferlet_sdk.tools.formats.hermes import HermesParser
from inferlet_sdk.tools.formats.signature import SignatureParser
from tests.helpers import rust_programs

MAIN = """
#![allow(dead_code)]
use std::future::Future;
use std::io::BufRead;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use json::Json;

struct Quiet;

impl Wake for Quiet {
    fn wake(self: Arc<Self>) {}
}

/// How often who waits for a permit is known, when it has asked a hundred times.
fn known() -> usize {
    let (permits, quiet) = (semaphore::Semaphore::new(0), Arc::new(Quiet));
    let waker = Waker::from(quiet.clone());
    let mut acquired = Box::pin(permits.acquire());
    for _ in 0..100 {
        assert!(acquired.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    Arc::strong_count(&quiet) - 2
}

fn main() {
    println!("{}", known());
    for line in std::io::stdin().lock().lines() {
        let asked = Json::parse(&line.unwrap()).unwrap();
        let [kind, first, second] = <&[Json; 3]>::try_from(asked.items()).unwrap();
        if kind.as_str() == Some("schema") {
            println!("{}", schema::check_arguments(first, second, "f").is_ok());
            continue;
        }
        let mut reader = calls::CallReader::new(kind.as_str() == Some("signature"));
        let mut found: Vec<_> = first.items().iter().map(|piece| reader.feed(piece.as_str().unwrap())).collect();
        found.push(reader.finish());
        let plain: String = found.iter().map(|one| one.plain.as_str()).collect();
        let calls = found.into_iter().flat_map(|one| one.calls).map(|call| Json::List(match call {
            Ok(call) => vec![call.name.into(), call.arguments],
            Err(call) => vec![call.name.into(), call.text.into(), call.is_cut_off.into()],
        }));
        println!("{}", Json::List([plain.into()].into_iter().chain(calls).collect()));
    }
}
"""
PARTS = {
    "hermes": (
        *("<tool_call>", "</tool_call>", '{"name": "add", "arguments": {"a": 1, "b": [true, null]}}', "é \U0001f41d"),
        *('{"arguments": {}, "name": "now"}', '{"name": "f", "parameters": {"x": "</tool_call> \\" }"}}', "text "),
        *('{"name": "f", "arguments": "{\\"x\\": 1}"}', '{"name":"f","arguments":""}', '{"name":"f","arguments":[1]}'),
        *('{"name": "", "arguments": {}}', '{"name": 3}', "\n", " ", "</tool", "<tool_ca", '{"name": "f", "argu'),
    ),
    "signature": (
        *("<tool>", "</tool>", 'add(1, "two")', "now()", 'f([1, {"a": ")"}])', " f (1) ", "f(x)", "f(1", "1f(2)"),
        *('été("é")', "a b(1)", "(1)", "text ", "\n", "<", "x" * 300),
    ),
}
MARKS = (*'"{}[]()\\,< x', "")
KINDS = (
    *("string", "integer", "number", "boolean", "null", "object", "array", "enum", "several", "any"),
    *("anyOf", "allOf"),
)
VALUES: tuple[Any, ...] = (1, 2, 2.0, 2.5, "a", "b", True, None, [], {}, {"a": 1}, [1])


def random_text(pick: random.Random, kind: str) -> str:
    begin, end, *_ = PARTS[kind]
    text = ""
    for _ in range(pick.randint(1, 6)):
        part = pick.choice(PARTS[kind])
        text += begin + part + end if pick.random() < 0.4 else part
    for _ in range(pick.choice((0, 0, 1, 3))):
        place = pick.randint(0, len(text))
        text = text[:place] + pick.choice(MARKS) + text[place + pick.randint(0, 4) :]
    return text


def in_python(kind: str, text: str) -> list[Any]:
    """The text around the calls of a text, and each call."""
    parser = SignatureParser() if kind == "signature" else HermesParser()
    plain, calls = "", list[Any]()
    for event in (*parser.feed(text), *parser.finish()):
        match event:
            case Text(more):
                plain += more
            case Call(_, name, arguments):
                calls.append([name, arguments])
            case Malformed():
                calls.append([event.name, event.text, event.cut_off])
    return [plain, *calls]


def random_schema(pick: random.Random, level: int = 0) -> dict[str, Any]:
    kind = "object" if level == 0 else pick.choice(KINDS if level < 3 else KINDS[:5])
    if kind == "object":
        properties = {name: random_schema(pick, level + 1) for name in pick.sample("abc", pick.randint(0, 3))}
        required = pick.sample(sorted(properties), pick.randint(0, len(properties)))
        further = pick.choice((True, False, random_schema(pick, 3)))
        others: dict[str, Any] = pick.choice(({}, {"additionalProperties": further}))
        if level == 0 and pick.random() < 0.2:
            others = {"allOf": [{"properties": {"other": random_schema(pick, 2)}, "required": ["other"]}]}
        return {"type": "object", "properties": properties, "required": required, **others}
    if kind == "array":
        return {"type": "array", "items": random_schema(pick, level + 1)}
    if kind in ("anyOf", "allOf"):
        return {kind: [random_schema(pick, level + 1), random_schema(pick, level + 1)]}
    plain: dict[str, dict[str, Any]] = {
        "enum": {"enum": pick.choices((1, 2, "a", None, True), k=3)},
        "several": {"type": pick.sample(KINDS[:5], 2)},
        "any": {},
    }
    return plain.get(kind, {"type": kind})


def random_value(pick: random.Random, schema: Any) -> Any:
    """One that often keeps to a schema."""
    if not isinstance(schema, dict) or pick.random() < 0.1:
        return pick.choice(VALUES)
    if "enum" in schema:
        return pick.choice(schema["enum"])
    if options := schema.get("anyOf") or ("type" not in schema and schema.get("allOf")):
        return random_value(pick, pick.choice(options))
    if schema.get("type") == "object":
        entries = {key: random_value(pick, one) for key, one in schema["properties"].items() if pick.random() < 0.9}
        return entries | ({"other": random_value(pick, None)} if pick.random() < 0.2 else {})
    if schema.get("type") == "array":
        return [random_value(pick, schema["items"]) for _ in range(pick.randint(0, 3))]
    return {"string": "a", "integer": 3, "number": 1.5, "boolean": False}.get(str(schema.get("type")))


def takes(schema: dict[str, Any], value: Any) -> bool:
    try:
        foreign_record("f", schema).read(value, ())
    except SchemaMismatch:
        return False
    return True


@pytest.mark.skipif(rust_programs.compiler() is None, reason="no Rust compiler")
def test_rust_reads_calls_and_checks_arguments_as_python_does(tmp_path: Path) -> None:
    place, source = rust_programs.compiler(), rust_programs.CRATE / "src"
    assert place is not None
    parts = {"error": "error", "json": "json/mod"}
    parts |= {"calls": "tools/calls", "schema": "tools/schema", "semaphore": "task/semaphore"}
    modules = [f'#[path = "{source / part}.rs"]\nmod {name};' for name, part in parts.items()]
    head, _, rest = MAIN.strip().partition("\n")
    (tmp_path / "main.rs").write_text("\n".join((head, *modules, rest)))
    command: list[str | Path] = [place / "rustc", "--edition", "2021", "-o", tmp_path / "reading", tmp_path / "main.rs"]
    subprocess.run(command, check=True, capture_output=True)
    pick, asked, expected = random.Random(0), list[Any](), list[Any]()
    for number in range(3000):
        kind = ("hermes", "signature", "schema")[number % 3]
        if kind == "schema":
            schema = random_schema(pick)
            value = random_value(pick, schema)
            asked.append((kind, schema, value))
            expected.append(takes(schema, value))
        else:
            text = random_text(pick, kind)
            cuts = sorted(pick.choices(range(len(text) + 1), k=pick.choice((0, 1, 5, len(text)))))
            asked.append((kind, [text[start:stop] for start, stop in pairwise([0, *cuts, len(text)])], None))
            expected.append(in_python(kind, text))
    said = subprocess.run(
        [tmp_path / "reading"], input="\n".join(map(json.dumps, asked)), check=True, capture_output=True, text=True
    )
    known, *lines = said.stdout.splitlines()
    assert known == "1"
    for one, wanted, line in zip(asked, expected, lines, strict=True):
        assert json.loads(line) == wanted, one
