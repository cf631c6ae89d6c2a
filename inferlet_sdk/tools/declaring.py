"""Tools in a conversation: in the model's chat template, or in the system message if that knows none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferlet_sdk.sequences.queues import Queues
from inferlet_sdk.tools.formats.dialect import Declaration, dialect_of
from inferlet_sdk.tools.tool import Tool, as_tool
from inferlet_sdk.traits.arguments import wrong

AnyTool = Tool[..., Any] | Callable[..., Any] | Declaration


@dataclass(frozen=True)
class Declared:
    """What a conversation says of tools: to the template, and in its system message."""

    tools: Sequence[Declaration] = ()
    system: str = ""

    def put_into(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The messages with what the system message says of tools."""
        if not self.system:
            return list(messages)
        first = messages[0] if messages else {}
        if first.get("role") == "system" and isinstance(first.get("content"), str):
            return [{**first, "content": f"{first['content']}\n{self.system}"}, *messages[1:]]
        return [{"role": "system", "content": self.system}, *messages]


def declare(queues: Queues, tools: Iterable[AnyTool]) -> Declared | None:
    """Tells of functions, `Tool`s, and declarations as templates take them, in the format of a `Tools`. None: there are
    none."""
    if not isinstance(tools, Iterable):
        raise wrong("tools", "a list of functions or declarations", tools)
    declarations = [tool if isinstance(tool, Mapping) else as_tool(tool).declaration for tool in tools]
    if not declarations:
        return None
    dialect = dialect_of(queues, getattr(tools, "format", None))
    return Declared(declarations) if dialect.declares else Declared(system=dialect.format.describe(declarations))
