"""A conversation in which the model calls tools: it writes calls, they run, it reads what they give, and so on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any

from inferlet_sdk import traits
from inferlet_sdk.context import Context
from inferlet_sdk.errors import NotAllowed
from inferlet_sdk.generation.generation import Generation
from inferlet_sdk.generation.sampling import GREEDY, AnySampler
from inferlet_sdk.grammars.grammar import Grammar
from inferlet_sdk.schemas.mismatch import SchemaMismatch, Truncated
from inferlet_sdk.sequences.queues import Queues, queues_of
from inferlet_sdk.texts import mended
from inferlet_sdk.tools.events import Call, CallStarted, Event, Malformed, Text
from inferlet_sdk.tools.formats.dialect import Dialect, dialect_of
from inferlet_sdk.tools.formats.grammars import AUTO, REQUIRED, Called, call_grammar
from inferlet_sdk.tools.mcp import McpServer
from inferlet_sdk.tools.tool import Tool, as_text, as_tool
from inferlet_sdk.traits.arguments import whole, wrong

LONGEST_RESULT = 20_000
"""Characters of what a tool gave that the model reads."""
LONGEST_ERROR = 2000


@dataclass(frozen=True)
class CallResult:
    """A call that has run. `text` is what the model reads: what the tool gave, or the error."""

    name: str
    arguments: dict[str, Any]
    text: str
    value: Any = None
    error: Exception | None = None


@dataclass(frozen=True)
class Answer:
    """The model's answer, after the calls that led to it. `stop_reason` is that of its generation."""

    text: str
    calls: Sequence[CallResult] = ()
    stop_reason: str | None = None


class TooManyRounds(RuntimeError):
    """The model goes on calling tools. `calls` have run; the one that was one too many has not."""

    def __init__(self, wanted: str, calls: Sequence[CallResult]) -> None:
        failed = [call for call in calls if call.error is not None]
        last = f". {len(failed)} failed, the last one {failed[-1].name}: {failed[-1].text}" if failed else ""
        super().__init__(
            f"after all rounds, with {len(calls)} calls, the model wants to call {wanted or 'a tool'} again: raise "
            f"`rounds`, or tell it when to answer{last}"
        )
        self.calls = calls


Hook = Callable[[Any], object]
"""A function of what happens, which may be an `async def`."""


@dataclass
class _Turn:
    """What a model has written in one go."""

    text: str = ""
    plain: str = ""
    calls: list[Call | Malformed] = field(default_factory=list)
    results: list[CallResult] = field(default_factory=list)
    stop_reason: str | None = None


class Tools:
    """Functions that a model may call.

    def add(a: int, b: int) -> int:
        '''Adds two numbers.'''
        return a + b

    answer = await Tools(add).chat(ctx, "What is 2 plus 3?", max_tokens=100)
    answer.text, answer.calls
    """

    def __init__(self, *tools: Tool[..., Any] | Callable[..., Any], format: str | None = None) -> None:
        """`format`: how the model writes calls, "hermes", "qwen_coder", "llama", "mistral", "deepseek" or "signature";
        found out by itself."""
        self.format = format
        self._tools: dict[str, Tool[..., Any]] = {}
        for one in map(as_tool, tools):
            if one.name in self._tools:
                raise ValueError(f"two tools are named {one.name}: give one of them another by `@tool(name=...)`")
            self._tools[one.name] = one
        self._count = 0

    @classmethod
    async def from_mcp(
        cls,
        url: str,
        *,
        only: Collection[str] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = 60.0,
        format: str | None = None,
    ) -> Tools:
        """The tools of a server that speaks MCP over HTTP, or those of the names in `only`. They are called with
        arguments by name, checked by the schemas that the server gives: `await tools["search"](query="rain")`.

            tools = await Tools.from_mcp("http://127.0.0.1:8099/mcp")
            answer = await tools.chat(ctx, "Who is the baker?")

        Several servers: `Tools(*await Tools.from_mcp(one), *await Tools.from_mcp(other))`. `headers` go with every
        request, as `{"Authorization": ...}`; `timeout`: seconds for each. Raises RequestFailed, also where a tool is
        called, for a server that cannot be reached, does not keep to the protocol or to its own schemas, or answers
        more than 1 MiB, and for what a tool itself calls a failure; NotAllowed and Unsupported as `http_post` does;
        ValueError for a name of `only` that the server does not have.
        """
        if isinstance(only, str):
            raise wrong("only", "a list of names of tools", only)
        server = McpServer(url, headers, timeout)
        await server.start()
        return cls(*await server.tools(only), format=format)

    def __iter__(self) -> Iterator[Tool[..., Any]]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __getitem__(self, name: str) -> Tool[..., Any]:
        return self._tools[name]

    async def run(self, call: Call | Malformed, *, raise_errors: bool = False) -> CallResult:
        """Checks and runs a call. What goes wrong is the result: the text tells the model, and a warning the log. With
        `raise_errors` it is raised; NotAllowed always is, for no model can mend a setting of the server's operator."""
        arguments: dict[str, Any] = {}
        try:
            if isinstance(call, Malformed):
                raise SchemaMismatch(f"the call cannot be read: {call.reason}", text=call.text)
            tool = self._tools.get(call.name)
            if tool is None:
                raise LookupError(f"there is no tool {call.name!r}; there are: {', '.join(self._tools) or 'none'}")
            arguments = tool.bind(call.arguments)
            with traits.span(tool.name, "execute_tool"):
                value = await tool.run(arguments)
            text = _cut(as_text(value), LONGEST_RESULT)
        except Exception as error:
            if raise_errors or isinstance(error, NotAllowed):
                raise
            told = _told(error)
            traits.log(f"tool {call.name or 'without a name'}: {told}", "warning")
            return CallResult(call.name, arguments, told, error=error)
        return CallResult(call.name, arguments, text, value)

    async def chat(
        self,
        ctx: Context,
        messages: str | Sequence[Mapping[str, Any]] = (),
        *,
        max_tokens: int | None = None,
        sampler: AnySampler = GREEDY,
        rounds: int = 8,
        choice: str = AUTO,
        strict: bool = False,
        raise_errors: bool = False,
        on_text: Hook | None = None,
        on_event: Hook | None = None,
    ) -> Answer:
        """Appends chat messages (a text is the user's) and gives the model's answer, after at most `rounds` times in
        which it called tools.

        Calls are read while they stream, checked, and run at once, several beside each other. Each of at most
        `max_tokens` tokens. `on_text` gets the text as it comes, such as `args.send`; `on_event` everything: `Text`,
        `CallStarted`, `Call`, `Malformed` and `CallResult`. What a tool raises, wrong arguments and unknown names are
        told to the model and to the log, unless `raise_errors`. Raises TooManyRounds, NotAllowed for what the server's
        operator does not allow a tool, and Truncated if `max_tokens` end a call.

        `choice`: the model may answer or call ("auto"), or it has to call first: any of the tools, once or several
        times ("required"), or once the one of this name. `strict`: calls are kept to the tools and their schemas while
        they are written, so none is malformed; a call that `choice` asks for is in any case.
        """
        whole(rounds, "rounds", least=0)
        if not isinstance(ctx, Context):
            raise wrong("ctx", "the context that goes on, as in `chat(ctx, 'What is 2 plus 3?')`", ctx)
        new = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        queues = queues_of(ctx.model.name)
        dialect = dialect_of(queues, self.format)
        later = self._grammar(dialect, AUTO) if strict else None
        first = later if choice == AUTO else self._grammar(dialect, choice)
        options = max_tokens, sampler
        run = _Run(self, ctx, queues, dialect, options, raise_errors, (on_text, on_event), rounds, first)
        ctx.fill_chat(new, tools=self)
        while (turn := await run.turn()).calls:
            run.grammar = later
            run.calls += turn.results
            run.rounds_left -= 1
            ctx.fill_chat([], reply=self._reply(dialect, turn))
        return Answer(turn.plain, run.calls, turn.stop_reason)

    def _grammar(self, dialect: Dialect, choice: str) -> Grammar | None:
        """What the model may write in one go; None: anything, as there are no tools."""
        if choice not in (AUTO, REQUIRED, *self._tools):
            raise ValueError(
                f"choice: {choice!r} is neither {AUTO!r} nor {REQUIRED!r} nor a tool: there are "
                f"{', '.join(self._tools) or 'none'}"
            )
        if not self._tools:
            if choice == REQUIRED:
                raise ValueError("choice: there are no tools, so none can be required: give some to `Tools`")
            return None
        tools = [Called(one.name, one.parameters.schema()) for one in self._tools.values()]
        return Grammar.of_lark(call_grammar(dialect.format.name, tools, dialect.shown, choice))

    def _reply(self, dialect: Dialect, turn: _Turn) -> list[Mapping[str, Any]]:
        """The messages for what the model wrote, and what its calls gave."""
        pairs = [self._messages(call, result, dialect) for call, result in zip(turn.calls, turn.results, strict=True)]
        answers = [answer for _, answer in pairs]
        if not dialect.renders_calls:
            return [{"role": "assistant", "content": turn.text}, *answers]
        calls = [call for call, _ in pairs]
        text = turn.plain.strip() if dialect.keeps_text else ""
        if not dialect.format.one_call:
            return [{"role": "assistant", "content": text or dialect.blank, "tool_calls": calls}, *answers]
        told = [text or dialect.blank] + [dialect.blank] * len(calls)
        return [
            message
            for text, call, answer in zip(told, calls, answers, strict=False)
            for message in ({"role": "assistant", "content": text, "tool_calls": [call]}, answer)
        ]

    def _messages(
        self, call: Call | Malformed, result: CallResult, dialect: Dialect
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """A call in a message of the assistant, and its answer. Identifiers have nine letters: Mistral wants them."""
        self._count += 1
        identifier = f"call{self._count % 100_000:05d}"
        name = call.name or "invalid_call"
        arguments: Any = _named(call, self._tools)
        if dialect.text_arguments:
            arguments = json.dumps(arguments, ensure_ascii=False)
        written = {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}
        return written, {"role": "tool", "name": name, "tool_call_id": identifier, "content": result.text}


def _named(call: Call | Malformed, tools: Mapping[str, Tool[..., Any]]) -> dict[str, Any]:
    if isinstance(call, Malformed):
        return {"text": _cut(call.text, LONGEST_ERROR)}
    if isinstance(call.arguments, dict):
        return call.arguments
    tool = tools.get(call.name)
    names = [one.name for one in tool.parameters.fields] if tool is not None else []
    return dict(zip(names, call.arguments, strict=False))


@dataclass
class _Run:
    """What stays the same over the turns of a conversation."""

    tools: Tools
    ctx: Context
    queues: Queues
    dialect: Dialect
    options: tuple[int | None, AnySampler]
    raise_errors: bool
    hooks: tuple[Hook | None, Hook | None]
    rounds_left: int
    grammar: Grammar | None
    """What the next turn is kept to."""
    calls: list[CallResult] = field(default_factory=list)

    async def turn(self) -> _Turn:
        """One go of the model. Calls run while it writes on."""
        max_tokens, sampler = self.options
        turn, parser = _Turn(), self.dialect.format.parser()
        tasks: list[asyncio.Task[CallResult]] = []
        generation = self.ctx.generate(max_tokens, sampler=sampler, grammar=self.grammar)
        reader = TextReader(generation, self.queues, self.dialect.shown)
        try:
            async for piece in generation:
                text = reader.read(piece)
                turn.text += text
                await self._take(parser.feed(text), turn, tasks)
            rest = reader.read("")
            turn.text += rest
            turn.stop_reason = generation.stop_reason
            await self._take([*parser.feed(rest), *parser.finish()], turn, tasks)
            turn.results = list(await asyncio.gather(*tasks))
        finally:
            reader.close()
            generation.end()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)  # no tool goes on behind an error
        return turn

    async def _take(self, events: Sequence[Event], turn: _Turn, tasks: list[asyncio.Task[CallResult]]) -> None:
        on_text, on_event = self.hooks
        for event in events:
            await _tell(on_event, event)
            if isinstance(event, Text):
                turn.plain += event.text
                await _tell(on_text, event.text)
            elif not isinstance(event, CallStarted):
                self._check_whole(event, turn)
                if self.rounds_left <= 0:
                    raise TooManyRounds(event.name, self.calls)
                turn.calls.append(event)
                tasks.append(asyncio.create_task(self._run(event)))

    def _check_whole(self, event: Call | Malformed, turn: _Turn) -> None:
        if isinstance(event, Malformed) and event.cut_off and turn.stop_reason == "length":
            limit = self.options[0]
            of = f" of {event.name}" if event.name else ""
            advice = "the context is full" if limit is None else f"raise max_tokens ({limit})"
            raise Truncated(f"the text ended within a call{of}: {advice}", text=event.text)

    async def _run(self, call: Call | Malformed) -> CallResult:
        result = await self.tools.run(call, raise_errors=self.raise_errors)
        await _tell(self.hooks[1], result)
        return result


class TextReader:
    """The text of a generation, with the special tokens that mark calls, which its pieces leave out."""

    def __init__(self, generation: Generation, queues: Queues, shown: Mapping[int, str]) -> None:
        self._generation = generation
        self._shown = shown
        self._seen = 0
        self._detokenizer = 0
        if shown:
            with queues.some() as queue:
                self._detokenizer = traits.create_detokenizer(queue)
            self._push(generation.before)

    def read(self, piece: str) -> str:
        """The text of what has come since, but of tokens that may begin a stop string."""
        if not self._shown:
            return piece
        tokens, _ = self._generation.behind(self._seen)
        self._seen += len(tokens)
        text, start = "", 0
        for place, token in enumerate(tokens):
            if token in self._shown:
                text += self._push(tokens[start:place]) + self._shown[token]
                start = place + 1
        return text + self._push(tokens[start:])

    def _push(self, tokens: list[int]) -> str:
        return traits.push_tokens(self._detokenizer, tokens) if tokens else ""

    def close(self) -> None:
        if self._detokenizer:
            traits.destroy_detokenizer(self._detokenizer)
            self._detokenizer = 0


async def _tell(hook: Hook | None, what: object) -> None:
    if hook is not None:
        told = hook(what)
        if isawaitable(told):
            await told


def _told(error: Exception) -> str:
    while isinstance(error, ExceptionGroup):  # of a TaskGroup: it says nothing itself
        error = error.exceptions[0]
    kind = "" if isinstance(error, SchemaMismatch | LookupError) else type(error).__name__
    return _cut(": ".join(filter(None, ("Error", kind, str(error)))), LONGEST_ERROR)


def _cut(text: str, length: int) -> str:
    text = mended(text)
    return text if len(text) <= length else f"{text[:length]}... ({len(text) - length} more characters)"
