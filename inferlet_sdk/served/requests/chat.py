"""A request for chat completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from inferlet_sdk.context import Context
from inferlet_sdk.errors import InvalidArgument
from inferlet_sdk.grammars.grammar import Grammar
from inferlet_sdk.schemas.results import has_grammar
from inferlet_sdk.sequences.queues import queues_of
from inferlet_sdk.sequences.sequence import LEAST_SHARED
from inferlet_sdk.served.errors import of_field
from inferlet_sdk.served.fields import Fields
from inferlet_sdk.served.requests.caching import CacheMark
from inferlet_sdk.served.requests.messages import (
    NO_IMAGES,
    Messages,
    checked_messages,
    has_calls,
    is_strict,
    parameters_of,
    read_tools,
)
from inferlet_sdk.served.requests.wanted import MOST_ALTERNATIVES, Place, Wanted, most_tokens
from inferlet_sdk.texts import common_length
from inferlet_sdk.tools.formats.dialect import Dialect, dialect_of
from inferlet_sdk.tools.formats.grammars import AUTO, REQUIRED, Called, call_grammar
from inferlet_sdk.traits import get_model_info
from inferlet_sdk.traits.outside.blobs import Blob

NONE = "none"
EFFORTS = (NONE, "minimal", "low", "medium", "high", "xhigh", "max")


@dataclass(frozen=True)
class ToolUse:
    """The tools of a request: their declarations, and how the model may use them."""

    declared: Sequence[Mapping[str, Any]]
    dialect: Dialect
    choice: str
    parallel: bool


@dataclass(frozen=True)
class ChatRequest:
    """What a chat completion is made of."""

    wanted: Wanted
    place: Place
    messages: Sequence[Mapping[str, Any]]
    tools: ToolUse | None
    add_generation_prompt: bool = True
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Further ones of the chat template."""
    continued: str | None = None
    """Text of the assistant that the answer goes on with."""

    @classmethod
    async def read(cls, fields: Fields, place: Place, images: Mapping[str, Blob] = NO_IMAGES) -> ChatRequest:
        """Reads and checks all fields. `images`: those that did not come with the request, by name. Raises Refused."""
        _refuse_others(fields)
        most = most_tokens(fields, "max_completion_tokens", "max_tokens")
        wanted = Wanted.read(fields, place, most, _logprobs(fields))
        messages, declared = checked_messages(fields), read_tools(fields)
        dialect = dialect_of(queues_of(place.model)) if declared or has_calls(messages) else None
        strict, tools = is_strict(fields), _tool_use(fields, declared, dialect)
        if tools is not None:
            grammar = _grammar(fields, place, tools, strict, wanted.grammar)
            wanted = replace(wanted, grammar=grammar, kept_by=wanted.kept_by or "tools")
        sees = get_model_info(place.model).image_token is not None
        read = await Messages(dialect, parameters_of(declared), sees, images).read(messages)
        continued = None
        if fields.flag("continue_final_message"):
            if fields.flag("add_generation_prompt") or read[-1]["role"] != "assistant" or len(read) < 2:
                reason = 'needs a last message of the assistant, and "add_generation_prompt": false'
                raise fields.refuse("continue_final_message", reason)
            *read, last = read
            continued = str(last["content"])
        prompted = fields.flag("add_generation_prompt", continued is None)
        return cls(wanted, place, read, tools, prompted, _variables(fields), continued)

    def fill(self, ctx: Context) -> None:
        """Fills a context with the prompt."""
        declared = self.tools.declared if self.tools is not None else ()
        prompted = self.add_generation_prompt or self.continued is not None
        with of_field("input" if self.place.route == "/v1/responses" else "messages"):
            ctx.fill_chat(self.messages, tools=declared, add_generation_prompt=prompted, variables=self.variables)
            if self.continued:
                ctx.fill(self.continued, special_tokens=False)

    def kept_tokens(self, prompt: Sequence[int], mark: CacheMark) -> int:
        """How many first tokens of the prompt, in whole pages, are before a mark, and are kept for later requests."""
        has_images = any(isinstance(one["content"], list) for one in self.messages)
        if len(prompt) < LEAST_SHARED or has_images:
            return 0
        shown: list[Mapping[str, Any]] = list(self.messages[: mark.messages])
        if mark.text is not None:
            shown.append({**self.messages[mark.messages], "content": mark.text})
        if all(one["role"] == "system" for one in shown):
            shown.append({"role": "user", "content": ""})  # templates want one
        with Context(self.place.model) as part:
            try:
                declared = self.tools.declared if self.tools is not None else ()
                part.fill_chat(shown, tools=declared, add_generation_prompt=False, variables=self.variables)
            except InvalidArgument:  # the template takes no such part of a conversation
                return 0
            common, size = common_length(prompt, part.tokens), part.model.page_size
        return min(common, len(prompt) - 1) // size * size


def _refuse_others(fields: Fields) -> None:
    fields.allow_only("modalities", (["text"],), "answers are text")
    fields.allow_only("store", (False,), "answers are not stored")
    fields.allow_only("echo", (False,), "goes with /v1/completions")
    fields.allow_only("best_of", (1,), "goes with /v1/completions")


def _variables(fields: Fields) -> dict[str, Any]:
    """Variables of the template: those that are given, and the effort of reasoning; "none" turns that off."""
    effort = fields.one_of("reasoning_effort", EFFORTS, "")
    told: dict[str, Any] = {"reasoning_effort": effort} if effort else {}
    if effort == NONE:
        told["enable_thinking"] = False
    return {**told, **fields.object("chat_template_kwargs").values}


def _logprobs(fields: Fields) -> int | None:
    if fields.flag("logprobs"):
        return fields.whole("top_logprobs", 0, MOST_ALTERNATIVES)
    if fields.whole("top_logprobs", 0, MOST_ALTERNATIVES):
        raise fields.refuse("top_logprobs", 'goes with "logprobs": true')
    return None


def _tool_use(fields: Fields, declared: Sequence[Mapping[str, Any]], dialect: Dialect | None) -> ToolUse | None:
    choice, several = fields.get("tool_choice"), fields.flag("parallel_tool_calls", True)
    if isinstance(choice, dict):
        given = fields.object("tool_choice")
        named = given.object("function").text("name") or given.text("name")
        if all(one["function"]["name"] != named for one in declared):
            raise fields.wrong("tool_choice", f"one of the tools, {[one['function']['name'] for one in declared]}")
        choice = named
    else:
        choice = fields.one_of("tool_choice", (NONE, AUTO, REQUIRED), AUTO if declared else NONE)
        if choice != NONE and not declared:
            raise fields.refuse("tool_choice", "goes with tools")
    if not declared or dialect is None or choice == NONE:
        return None
    return ToolUse(declared, dialect, choice, several)


def _grammar(fields: Fields, place: Place, tools: ToolUse, strict: bool, answer: Grammar | None) -> Grammar | None:
    """What the answer is kept to, calls included: to the schemas of the tools, and where it is no call, to the format
    that was asked for."""
    if tools.choice == AUTO and not strict and answer is None:
        return None
    if not has_grammar(place.model):
        raise fields.refuse(
            "tool_choice", f"the model {place.model} cannot be kept to a grammar, so calls are as it likes"
        )
    called = [Called(one["function"]["name"], one["function"]["parameters"]) for one in tools.declared]
    choice = REQUIRED if tools.choice == AUTO and answer is not None else tools.choice
    text = call_grammar(tools.dialect.format.name, called, tools.dialect.shown, choice)
    if answer is not None and tools.choice == AUTO:
        if answer.kind != "json-schema":
            raise fields.refuse("structured_outputs", "goes with tools as json only")
        text = f"start: answer | {text.removeprefix('start: ')}\nanswer: %json {answer.text}"
    return Grammar.of_lark(text)
