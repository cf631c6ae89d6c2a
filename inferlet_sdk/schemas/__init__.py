"""Types and JSON: an annotation becomes a JSON Schema, and a JSON value becomes an instance.

@dataclass
class Item:
    name: str
    price: Annotated[float, "in euros"]

json_schema(list[Item])
from_json('[{"name": "pen", "price": 2}]', list[Item])  # [Item(name='pen', price=2.0)]
from_json('[{"name": "pen", "price": "x"}]', list[Item])  # SchemaMismatch: $[0].price: expected a number, got "x"
to_json([Item("pen", 2.0)])  # '[{"name": "pen", "price": 2.0}]'
"""

from __future__ import annotations

from inferlet_sdk.schemas.json_values import JsonScanner, parse_json
from inferlet_sdk.schemas.mismatch import SchemaMismatch, Truncated, UnsupportedType
from inferlet_sdk.schemas.types import from_json, json_schema
from inferlet_sdk.schemas.writing import to_json

__all__ = [
    "JsonScanner",
    "SchemaMismatch",
    "Truncated",
    "UnsupportedType",
    "from_json",
    "json_schema",
    "parse_json",
    "to_json",
]
