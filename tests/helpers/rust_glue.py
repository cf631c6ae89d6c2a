"""The raw calls of the Rust crate, written from the WIT files: `inferlet_sdk/rust/src/raw.rs`.

Arguments are lowered as the canonical ABI of the component model says: flat, up to 16 numbers, and otherwise as a
record in memory. A result comes in memory and is lifted by its type (`abi.rs`). Names of imports are those of
wit-bindgen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.helpers.wit import WIT_FOLDER, world_imports

MOST_FLAT = 16
"""Numbers of the arguments of one call; more of them are passed in memory."""

_PACKAGE = re.compile(r"^package ([\w:-]+)@([\w.-]+);", re.MULTILINE)
_INTERFACE = re.compile(r"^interface ([\w-]+) \{(.*?)^\}", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(
    r"(?P<docs>(?:^ *///[^\n]*\n)*)^  (?:enum (?P<enum>[\w-]+) \{(?P<cases>[^}]*)\}"
    r"|%?(?P<name>[\w-]+): func\((?P<parameters>[^)]*)\)(?:\s*->\s*(?P<result>[^;]+))?;)",
    re.MULTILINE,
)
_HEADER = """//! Every call of the API as it is. Written by `scripts/update_rust` from the WIT files.

#![allow(clippy::too_many_arguments)]
"""
_SIZES = {"&str": "{}.len()", "&[&str]": "crate::abi::size_of_texts({})"}
"""What counts of an argument for the most that one call passes. Of all others that are lists, their numbers do."""
_PLAIN = {"u32": "u32", "s32": "i32", "u64": "u64", "f32": "f32", "bool": "bool", "string": "String", "_": "()"}


@dataclass(frozen=True)
class _Parameter:
    """A parameter: how Rust takes it, and its numbers, each with a type and an expression."""

    name: str
    type: str
    numbers: tuple[tuple[str, str], ...]


def source() -> str:
    """The text of the module."""
    files = [path.read_text() for path in sorted(WIT_FOLDER.glob("*.wit"))]
    found = _PACKAGE.search(files[0])
    assert found is not None
    package, version = found.groups()
    wanted = world_imports("inferlet")
    parts = [_HEADER]
    for interface, body in _INTERFACE.findall("\n".join(files)):
        if (name := _snake(interface)) in wanted:
            parts.append(_module(name, f"{package}/{interface}@{version}", body))
    return "\n".join(parts)


def _module(name: str, imported: str, body: str) -> str:
    items = list(_ITEM.finditer(body))
    enums = {item["enum"] for item in items if item["enum"]}
    uses = "call, Error" if "error" in body else "call"
    texts = [_enum(item) if item["enum"] else _function(item, imported, enums) for item in items]
    inner = "\n".join([f"use crate::abi::{{{uses}}};" if "," in uses else f"use crate::abi::{uses};", "", *texts])
    return f"pub mod {name} {{\n{_indented(inner)}}}\n"


def _indented(text: str) -> str:
    return "".join(f"    {line}" if line.strip() else line for line in text.splitlines(keepends=True))


def _docs(item: re.Match[str]) -> str:
    return "".join(f"{line.strip()}\n" for line in item["docs"].splitlines())


def _enum(item: re.Match[str]) -> str:
    cases = ", ".join(_camel(case.strip()) for case in item["cases"].split(",") if case.strip())
    return f"{_docs(item)}#[derive(Clone, Copy, Debug, PartialEq, Eq)]\npub enum {_camel(item['enum'])} {{ {cases} }}\n"


def _function(item: re.Match[str], imported: str, enums: set[str]) -> str:
    given = [part.split(":") for part in re.split(r",(?![^<]*>)", " ".join(item["parameters"].split())) if part.strip()]
    parameters = [_parameter(name, kind.strip(), enums) for name, kind in given]
    result = _result_type(" ".join((item["result"] or "_").split()))
    numbers = [number for one in parameters for number in one.numbers]
    signature = ", ".join(f"{one.name}: {one.type}" for one in parameters)
    arrow = "" if result == "()" else f" -> {result}"
    lines = [f"{_docs(item)}pub fn {_snake(item['name'])}({signature}){arrow} {{"]
    in_memory = len(numbers) > MOST_FLAT
    if in_memory:
        lines += ["    #[repr(C)]", f"    struct Arguments({', '.join(kind for kind, _ in numbers)});"]
    kinds = ["&Arguments"] if in_memory else [_flat(kind) for kind, _ in numbers]
    values = ["&arguments"] if in_memory else [_as_flat(kind, value) for kind, value in numbers]
    called = f"import({', '.join(values)})"
    if result != "()":
        kinds, called = [*kinds, "*mut u8"], f"call(|result| import({', '.join([*values, 'result'])}))"
    declared = ", ".join(f"_: {kind}" for kind in kinds)
    lines += [
        f'    #[link(wasm_import_module = "{imported}")]',
        '    extern "C" {',
        f'        #[link_name = "{item["name"]}"]',
        f"        fn import({declared});",
        "    }",
    ]
    sizes = [_SIZES.get(one.type, "crate::abi::size_of({})").format(one.name) for one in parameters if "&" in one.type]
    if sizes and result.startswith("Result"):
        lines.append(f'    crate::abi::check_size("{item["name"]}", &[{", ".join(sizes)}])?;')
    for one in parameters:
        if one.type == "&[&str]":
            lines.append(f"    let {one.name} = crate::abi::texts({one.name});")
    if in_memory:
        lines.append(f"    let arguments = Arguments({', '.join(value for _, value in numbers)});")
    lines += [f"    unsafe {{ {called} }}", "}", ""]
    return "\n".join(lines)


def _parameter(wit_name: str, kind: str, enums: set[str]) -> _Parameter:
    name = _snake(wit_name)
    pair = (("*const u8", f"{name}.as_ptr().cast()"), ("usize", f"{name}.len()"))
    if kind == "string":
        return _Parameter(name, "&str", pair)
    if kind in ("list<u32>", "list<f32>"):
        return _Parameter(name, f"&[{kind[5:-1]}]", pair)
    if kind == "list<string>":
        return _Parameter(name, "&[&str]", pair)
    if kind in enums:
        return _Parameter(name, _camel(kind), (("u8", f"{name} as u8"),))
    return _Parameter(name, _PLAIN[kind], ((_PLAIN[kind], name),))


def _flat(kind: str) -> str:
    return "u32" if kind in ("u8", "bool") else kind


def _as_flat(kind: str, value: str) -> str:
    return (
        f"u32::from({value})" if kind == "bool" else f"{value.removesuffix(' as u8')} as u32" if kind == "u8" else value
    )


def _result_type(kind: str) -> str:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind == "error":
        return "Error"
    name, rest = kind.split("<", 1)
    inner = [_result_type(part) for part in _split(rest[:-1])]
    if name == "tuple":
        return f"({', '.join(inner)})"
    return f"{ {'list': 'Vec', 'option': 'Option', 'result': 'Result'}[name] }<{', '.join(inner)}>"


def _split(text: str) -> list[str]:
    """Types with commas between, which do not count within angle brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "<") - (letter == ">")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _snake(name: str) -> str:
    return name.strip().removeprefix("%").replace("-", "_")


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("-"))
