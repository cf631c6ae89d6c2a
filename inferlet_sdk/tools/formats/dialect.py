"""How a model is told of tools, and how it calls them: found by what its chat template makes of a conversation with a
call, else by its vocabulary."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from inferlet_sdk import traits
from inferlet_sdk.errors import InvalidArgument, Unsupported
from inferlet_sdk.sequences.queues import Queues
from inferlet_sdk.tools.formats import deepseek, hermes, llama, mistral, qwen_coder, signature
from inferlet_sdk.tools.formats.parser import Parser

Declaration = Mapping[str, Any]
"""A tool as chat templates take it: {"type": "function", "function": {"name", "description", "parameters"}}."""


@dataclass(frozen=True)
class Format:
    """How calls are written. `markers` may be special tokens; `describe` tells of tools where the chat template does
    not; `one_call`: templates take one call in a message."""

    name: str
    parser: Callable[[], Parser]
    markers: tuple[str, ...]
    describe: Callable[[Sequence[Declaration]], str]
    one_call: bool = False


@dataclass(frozen=True)
class Dialect:
    """The format of a model. `shown`: special tokens that mark calls, which the text of a generation leaves out."""

    format: Format
    declares: bool
    """Whether the chat template tells of tools."""
    renders_calls: bool
    """Whether it renders calls of earlier messages; else they are text."""
    text_arguments: bool
    """Whether it wants arguments as JSON text."""
    blank: str | None
    """The content of a message that has calls and no text."""
    keeps_text: bool
    """Whether it renders the text of a message with calls."""
    shown: Mapping[int, str]


def _described(declaration: Declaration) -> Mapping[str, Any]:
    function: Mapping[str, Any] = declaration.get("function", declaration)
    return function


def _hermes_text(tools: Sequence[Declaration]) -> str:
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with "
        f"function signatures within <tools></tools> XML tags:\n<tools>\n{listed}\n</tools>\n\nFor each function call, "
        "return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
        '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
    )


def _llama_text(tools: Sequence[Declaration]) -> str:
    listed = "\n\n".join(json.dumps(tool, ensure_ascii=False, indent=4) for tool in tools)
    return (
        "You have access to the following functions. To call a function, please respond with JSON for a function call. "
        'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}. '
        f"Do not use variables.\n\n{listed}"
    )


def _mistral_text(tools: Sequence[Declaration]) -> str:
    return (
        f"[AVAILABLE_TOOLS] {json.dumps(tools, ensure_ascii=False)}[/AVAILABLE_TOOLS]\nTo call one, answer with "
        '[TOOL_CALLS] [{"name": ..., "arguments": {...}}].'
    )


def _qwen_coder_text(tools: Sequence[Declaration]) -> str:
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (
        f"# Tools\n\nYou have access to these functions:\n<tools>\n{listed}\n</tools>\n\nTo call one, write this, and "
        "nothing behind it:\n<tool_call>\n<function=NAME>\n<parameter=PARAMETER>\nvalue, over several lines if "
        "need be\n</parameter>\n</function>\n</tool_call>"
    )


def _deepseek_text(tools: Sequence[Declaration]) -> str:
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    call = f"{deepseek.CALL}function{deepseek.SEPARATOR}NAME\n```json\n{{arguments}}\n```{deepseek.CALL_END}"
    return f"# Tools\n\n{listed}\n\nTo call them, write: {deepseek.BEGIN}{call}{deepseek.END}"


def _signature_text(tools: Sequence[Declaration]) -> str:
    lines = []
    for function in map(_described, tools):
        parameters = ", ".join(function.get("parameters", {}).get("properties", {}))
        lines.append(f"{function['name']}({parameters}): {function.get('description', '')}")
    return "\n".join(("Tools:", *lines))


HERMES = Format("hermes", hermes.HermesParser, (hermes.BEGIN, hermes.END), _hermes_text)
LLAMA = Format("llama", llama.LlamaParser, (llama.TAG,), _llama_text, one_call=True)
MISTRAL = Format(
    "mistral", mistral.MistralParser, (mistral.BEGIN, mistral.ARGUMENTS, mistral.IDENTIFIER), _mistral_text
)
QWEN_CODER = Format("qwen_coder", qwen_coder.QwenCoderParser, (qwen_coder.BEGIN, qwen_coder.END), _qwen_coder_text)
DEEPSEEK = Format(
    "deepseek",
    deepseek.DeepSeekParser,
    (deepseek.BEGIN, deepseek.END, deepseek.CALL, deepseek.CALL_END, deepseek.SEPARATOR),
    _deepseek_text,
)
SIGNATURE = Format("signature", signature.SignatureParser, (signature.BEGIN, signature.END), _signature_text)
FORMATS = {one.name: one for one in (HERMES, QWEN_CODER, LLAMA, MISTRAL, DEEPSEEK, SIGNATURE)}

_TOOL, _CALL = "pie_probe_tool", "pie_probe_call"
_PROBE = {
    "type": "function",
    "function": {"name": _TOOL, "description": "", "parameters": {"type": "object", "properties": {}}},
}
_ASKED = {"role": "user", "content": "hi"}
_TEXT = "pie_probe_text"
_FORMS: tuple[tuple[str | None, dict[str, Any] | str], ...] = (("", {}), (None, {}), (None, "{}"), ("", "{}"))
"""Content and arguments of a message with a call: templates take one or the other."""
_ANSWERED = {"role": "tool", "name": _CALL, "tool_call_id": "call00000", "content": "ok"}
_HERMES_CALL = re.compile(rf"{hermes.BEGIN}\s*\{{")
_QWEN_CODER_CALL = re.compile(rf"{qwen_coder.BEGIN}\s*<function=")
_LLAMA_CALL = re.compile(rf'"name":\s*"{_CALL}",\s*"parameters"')

_found: WeakKeyDictionary[Queues, Dialect] = WeakKeyDictionary()


def dialect_of(queues: Queues, name: str | None = None) -> Dialect:
    """How the model of some queues calls tools, in the format `name` if one is given. Raises Unsupported if the model
    has no chat template, or a format that is not known here."""
    if name is not None and name not in FORMATS:
        raise ValueError(f"format: {name!r} is unknown: there are {', '.join(FORMATS)}")
    if name is None and queues in _found:
        return _found[queues]
    with queues.some() as queue:
        dialect = _find(queue, None if name is None else FORMATS[name])
    if name is None:
        _found[queues] = dialect
    return dialect


def _find(queue: int, given: Format | None) -> Dialect:
    declared, called = _render(queue, [_ASKED]), ""
    for blank, arguments in _FORMS:  # the last one is used below
        called = _render(queue, [_ASKED, _called(blank, arguments), _ANSWERED])
        if _CALL in called:
            break
    renders_calls = _CALL in called
    known = given or (_by_template(called) if renders_calls else _by_template(declared) or _by_vocabulary(queue))
    if known is None:
        raise Unsupported(
            "the model's chat template writes calls of tools in a form that is unknown here: choose one by "
            f"`Tools(format=...)`, of {', '.join(FORMATS)}"
        )
    told = _render(queue, [_ASKED, _called(_TEXT, arguments), _ANSWERED])
    if known is DEEPSEEK and _CALL in _render(queue, [_ASKED, _called(None, arguments), _ANSWERED]):
        blank = None  # an empty text makes a further message
    return Dialect(
        known,
        _TOOL in declared,
        renders_calls,
        text_arguments=isinstance(arguments, str),
        blank=blank,
        keeps_text=_CALL in told and _TEXT in told,
        shown=_shown(queue, known.markers),
    )


def _called(content: str | None, arguments: dict[str, Any] | str) -> dict[str, Any]:
    call = {"id": "call00000", "type": "function", "function": {"name": _CALL, "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def _render(queue: int, messages: Sequence[Mapping[str, Any]]) -> str:
    try:
        return traits.format_chat(queue, messages, [_PROBE], False)
    except InvalidArgument:  # the template refuses such messages
        return ""


def _by_template(text: str) -> Format | None:
    if mistral.BEGIN in text:
        return MISTRAL
    if deepseek.BEGIN in text:
        return DEEPSEEK
    if _QWEN_CODER_CALL.search(text):
        return QWEN_CODER
    if _HERMES_CALL.search(text):
        return HERMES
    return LLAMA if _LLAMA_CALL.search(text) or llama.TAG in text else None


def _by_vocabulary(queue: int) -> Format:
    marked = ((deepseek.BEGIN, DEEPSEEK), (hermes.BEGIN, HERMES), (mistral.BEGIN, MISTRAL), (llama.TAG, LLAMA))
    for marker, known in marked:
        if len(traits.tokenize(queue, marker)) == 1:
            return known
    is_demo = len(traits.tokenize(queue, "<|tool|>")) == 1 < len(traits.tokenize(queue, "<|tool_call|>"))
    return SIGNATURE if is_demo else HERMES


def _shown(queue: int, markers: Sequence[str]) -> dict[int, str]:
    shown = {}
    for marker in markers:
        tokens = traits.tokenize(queue, marker)
        if len(tokens) == 1 and traits.detokenize(queue, tokens) != marker:
            shown[tokens[0]] = marker
    return shown
