"""What clients send: OpenAI's `/v1/completions` and `/v1/chat/completions`, and what vLLM has beside (`top_k`, `min_p`,
`ignore_eos`, `return_token_ids`)."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from pie_control.errors import InvalidArgument, PieError
from pie_control.services.tokenizer import Tokenizer
from pie_inference.grammars.sources import GrammarError, source_of

from .http import Refused
from .sequence import Parameters

MOST_SAMPLES = 128


class JsonSchema(msgspec.Struct):
    """A schema, as OpenAI's API has it."""

    schema: dict[str, Any]
    name: str = ""


class ResponseFormat(msgspec.Struct):
    """`json_schema`, `json_object` or `text`."""

    type: str = "text"
    json_schema: JsonSchema | None = None


class StreamOptions(msgspec.Struct):
    include_usage: bool = False


class Asked(msgspec.Struct, kw_only=True):
    """What both kinds of completions have."""

    model: str = ""
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] = 16
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] = 1.0
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, msgspec.Meta(ge=-1)] = 0
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    n: Annotated[int, msgspec.Meta(ge=1, le=MOST_SAMPLES)] = 1
    stop: str | list[str] | None = None
    seed: int | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    ignore_eos: bool = False
    return_token_ids: bool = False
    logprobs: int | bool | None = None
    echo: bool = False
    best_of: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, float] | None = None

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    def parameters(self, sample: int) -> Parameters:
        """Those of one of the samples. Raises Refused."""
        return Parameters(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=max(0, self.top_k),
            top_p=self.top_p,
            min_p=self.min_p,
            seed=None if self.seed is None else abs(self.seed) + sample,
            ignore_eos=self.ignore_eos,
            grammar=self._grammar(),
        )

    def _grammar(self) -> str:
        form = self.response_format or ResponseFormat()
        if form.type == "text":
            return ""
        if form.type == "json_object":
            schema: dict[str, Any] = {"type": "object"}
        elif form.type == "json_schema" and form.json_schema is not None:
            schema = form.json_schema.schema
        else:
            raise Refused("response_format: its type is text, json_object, or json_schema with a json_schema")
        try:
            return source_of("json-schema", msgspec.json.encode(schema).decode())
        except GrammarError as error:
            raise Refused(f"response_format: {error}") from None

    def check(self) -> None:
        """Raises Refused for what this server cannot do, so that nobody measures something else."""
        lacking = ("logprobs", "echo", "best_of", "presence_penalty", "frequency_penalty", "logit_bias")
        if given := [name for name in lacking if getattr(self, name)]:
            raise Refused(f"this server has no {', '.join(given)}: leave that out")


class Completion(Asked):
    """`prompt`: a text, or tokens."""

    prompt: str | list[int]

    def tokens(self, tokenizer: Tokenizer) -> list[int]:
        if isinstance(self.prompt, str):
            return tokenizer.encode(self.prompt)
        if self.prompt and min(self.prompt) < 0:
            raise InvalidArgument("tokens of a prompt are not negative")
        tokenizer.check(self.prompt)
        return self.prompt


class Chat(Asked):
    """`messages`, for the model's template."""

    messages: list[dict[str, Any]]
    max_completion_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    tools: list[dict[str, Any]] | None = None

    def tokens(self, tokenizer: Tokenizer) -> list[int]:
        tools = msgspec.json.encode(self.tools).decode() if self.tools else ""
        return tokenizer.encode_chat(msgspec.json.encode(self.messages).decode(), tools, True)


def read(body: bytes, kind: type[Completion] | type[Chat], tokenizer: Tokenizer) -> tuple[Completion | Chat, list[int]]:
    """A request and the tokens of its prompt. Raises Refused."""
    try:
        asked = msgspec.json.decode(body, type=kind)
        asked.check()
        if isinstance(asked, Chat) and asked.max_completion_tokens is not None:
            asked.max_tokens = asked.max_completion_tokens
        return asked, asked.tokens(tokenizer)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Refused(f"the request does not fit: {error}") from None
    except PieError as error:
        raise Refused(str(error)) from None
