"""`Tools.chat` with a scripted model, in each format, with templates that render tools and calls, and one that does
not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from inferlet_sdk import (
    Answer,
    CallResult,
    Cancelled,
    Context,
    NotAllowed,
    Tools,
    TooManyRounds,
    Truncated,
    Unsupported,
    tool,
)
from inferlet_sdk.event_loop import run
from inferlet_sdk.tools.events import Call, CallStarted, Text
from tests.helpers import chat_templates
from tests.helpers.native_host import install, nothing_held
from tests.helpers.scripted_model import STOP, State

ASK = "What is 2 plus 3?"
WAIT = '<tool_call>{"name": "wait"}</tool_call>'


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@tool(name="look_up")
async def look_up_slowly(key: str, default: str | None = None) -> dict[str, str]:
    """Looks something up.

    Args:
        key: what to look up
    """
    await asyncio.sleep(0)
    if key == "nothing":
        raise KeyError(key)
    return {key: default or "found"}


class Scripted:
    """A model that writes `replies`, one after the other, in a chat template. `rendered`: the conversations that it was
    given."""

    def __init__(self, template: str, replies: Sequence[str], special: Sequence[str] = ()) -> None:
        options: dict[str, Any] = {"template": template, "special": special, "next_token": self._next_token}
        self.host = install(max_context=40_000, page_size=64, **options)
        self.rendered: list[str] = []
        self._replies = [[*self.host.tokenizer.encode(text), STOP] for text in replies]
        self._starts: list[int] = []
        tokenize_chat = self.host.tokenize.tokenize_chat

        def recorded(*given: Any) -> Any:
            tokens = tokenize_chat(*given)
            self.rendered.append(self.host.tokenize.format_chat(*given))
            self._starts.append(len(tokens))
            return tokens

        self.host.tokenize.tokenize_chat = recorded

    def _next_token(self, seen: State) -> int:
        reply = self._replies[min(len(self._starts), len(self._replies)) - 1]
        return reply[min(seen[-1][1] + 1 - self._starts[-1], len(reply) - 1)]


def chat(
    model: Scripted, *tools: Any, messages: Any = ASK, format: str | None = None, **options: Any
) -> tuple[Answer, str]:
    async def ask() -> tuple[Answer, str]:
        async with Context() as ctx:
            answer = await Tools(*tools, format=format).chat(ctx, messages, **options)
            return answer, ctx.text

    result = run(ask())
    assert nothing_held(model.host)
    return result


CALLS: Mapping[str, tuple[str, str, str]] = {
    "hermes": (
        chat_templates.QWEN,
        '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>',
        '<tool_call>\n{"name": "look_up", "arguments": {"key": "x"}}\n</tool_call>',
    ),
    "llama": (
        chat_templates.LLAMA,
        '{"name": "add", "parameters": {"a": 2, "b": 3}}',
        '; {"name": "look_up", "parameters": {"key": "x"}}',
    ),
    "mistral": (
        chat_templates.MISTRAL,
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 2, "b": 3}}',
        ', {"name": "look_up", "arguments": {"key": "x"}}]',
    ),
    "qwen_coder": (
        chat_templates.QWEN_CODER,
        "<tool_call>\n<function=add>\n<parameter=a>\n2\n</parameter>\n<parameter=b>\n3\n</parameter>\n</function>\n"
        "</tool_call>",
        "\n<tool_call>\n<function=look_up>\n<parameter=key>\nx\n</parameter>\n</function>\n</tool_call>",
    ),
    "deepseek": (
        chat_templates.DEEPSEEK,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n"
        '```json\n{"a": 2, "b": 3}\n```<｜tool▁call▁end｜>',
        "\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>look_up\n"
        '```json\n{"key": "x"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    ),
    "deepseek_31": (
        chat_templates.DEEPSEEK_31,
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 2, "b": 3}<｜tool▁call▁end｜>',
        '<｜tool▁call▁begin｜>look_up<｜tool▁sep｜>{"key": "x"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    ),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("at_once", [1, 9])
def test_calls_run_and_the_model_reads_what_they_gave(name: str, at_once: int) -> None:
    template, first, second = CALLS[name]
    model = Scripted(template, [first + second, "It is 5."])
    model.host.tokens_at_once = at_once
    answer, text = chat(model, add, look_up_slowly)
    assert answer.text == "It is 5."
    assert answer.stop_reason == "stop"
    assert [(one.name, one.arguments, one.value, one.text) for one in answer.calls] == [
        ("add", {"a": 2, "b": 3}, 5, "5"),
        ("look_up", {"key": "x"}, {"x": "found"}, '{"x": "found"}'),
    ]
    asked, answered = model.rendered
    assert "Adds two numbers." in asked
    assert '"what to look up"' in asked
    assert all(part in answered for part in ("Adds two numbers.", "5", "found"))
    assert text.endswith("It is 5.")
    assert text.index("2 plus 3") < text.index("look_up", text.index("2 plus 3")) < text.rindex("found")


@pytest.mark.parametrize("name", CALLS)
def test_what_the_model_wrote_is_not_run_again(name: str) -> None:
    """Where the template renders a call as the model writes it."""
    template, first, _ = CALLS[name]
    end = "]" if name == "mistral" else ""
    model = Scripted(template, [first + end, "ok"])
    run_tokens: list[int] = []
    forward = model.host.forward.forward

    def counting(*given: Any) -> Any:
        run_tokens.extend(given[5])
        return forward(*given)

    model.host.forward.forward = counting
    chat(model, add)
    assert len(run_tokens) < len(model.host.tokenizer.encode(model.rendered[-1])) + len(first) + 30


def test_a_template_without_tools_gets_them_in_the_system_message() -> None:
    call = 'Well: <tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
    model = Scripted(chat_templates.PLAIN, [call, "5."])
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ASK}]
    answer, _ = chat(model, add, messages=messages)
    assert answer.text == "5."
    assert model.rendered[0].count("system") == 1
    assert "Be brief.\n# Tools" in model.rendered[0]
    assert f"assistant\n{call}<|end|><|begin|>tool\n5<|end|>" in model.rendered[1]


def test_the_demo_format_names_arguments_by_their_place() -> None:
    model = Scripted(chat_templates.PLAIN, ["<tool>add(2, 3)</tool>", "5."])
    answer, _ = chat(model, add, format="signature")
    assert [(one.arguments, one.value) for one in answer.calls] == [({"a": 2, "b": 3}, 5)]
    assert "system\nTools:\nadd(a, b): Adds two numbers.<|end|>" in model.rendered[0]


WRONG = [
    ('{"name": "add", "arguments": {"a": "x", "b": 3}}', 'Error: $.a: expected an integer, got "x"'),
    ('{"name": "add", "arguments": {"a": 1}}', 'Error: $: "b" is missing: expected an integer'),
    ('{"name": "sub", "arguments": {}}', "Error: there is no tool 'sub'; there are: add, look_up"),
    ('{"name": "look_up", "arguments": {"key": "nothing"}}', "Error: 'nothing'"),
    ('{"name": "add", "arguments": {a}}', "Error: $: the call cannot be read: not JSON"),
    ("add 2 and 3", "Error: $: the call cannot be read: no JSON object"),
]


@pytest.mark.parametrize(("call", "told"), WRONG)
def test_what_is_wrong_is_told_to_the_model(call: str, told: str) -> None:
    replies = [f"<tool_call>{call}</tool_call>", "Sorry."]
    answer, _ = chat(Scripted(chat_templates.QWEN, replies), add, look_up_slowly)
    assert answer.text == "Sorry."
    assert [one.text.startswith(told) for one in answer.calls] == [True], answer.calls
    assert isinstance(answer.calls[0].error, Exception)
    with pytest.raises(type(answer.calls[0].error)):
        chat(Scripted(chat_templates.QWEN, replies), add, look_up_slowly, raise_errors=True)


def test_calls_that_do_not_end_are_bounded() -> None:
    call = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
    model = Scripted(chat_templates.QWEN, [call])
    with pytest.raises(TooManyRounds, match="with 3 calls, the model wants to call add again") as caught:
        chat(model, add, rounds=3)
    assert [one.value for one in caught.value.calls] == [5, 5, 5]


def test_a_failed_tool_is_logged_and_named_where_rounds_end() -> None:
    def fetch() -> str:
        """Fetches."""
        raise ExceptionGroup("unhandled errors in a TaskGroup", [OSError("no route to host")])

    model = Scripted(chat_templates.QWEN, ['<tool_call>{"name": "fetch", "arguments": {}}</tool_call>'])
    with pytest.raises(TooManyRounds, match=r"2 failed, the last one fetch: Error: OSError: no route to host"):
        chat(model, fetch, rounds=2)
    assert model.host.logs == ["warning: tool fetch: Error: OSError: no route to host"] * 2


def test_what_the_operator_must_mend_is_raised_at_once() -> None:
    def fetch() -> str:
        """Fetches."""
        raise NotAllowed("http to example.org is not allowed")

    model = Scripted(chat_templates.QWEN, ['<tool_call>{"name": "fetch", "arguments": {}}</tool_call>', "Sorry."])
    with pytest.raises(NotAllowed, match=r"example\.org"):
        chat(model, fetch)


def test_a_call_that_max_tokens_end_says_so() -> None:
    call = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
    with pytest.raises(Truncated, match=r"within a call of add: raise max_tokens \(40\)"):
        chat(Scripted(chat_templates.QWEN, [call]), add, max_tokens=40)


def test_hooks_get_what_happens_in_order() -> None:
    call = 'So: <tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
    happened: list[Any] = []
    sent: list[str] = []

    async def send(text: str) -> None:
        sent.append(text)

    chat(Scripted(chat_templates.QWEN, [call, "5."]), add, on_text=send, on_event=happened.append)
    assert "".join(sent) == "So: 5."
    kinds = [type(one) for one in happened if not isinstance(one, Text)]
    assert kinds == [CallStarted, Call, CallResult]


def test_calls_run_beside_each_other() -> None:
    """Each waits for all of them."""
    begun: list[int] = []
    all_begun: list[asyncio.Event] = []

    async def wait(n: int) -> int:
        begun.append(n)
        event = all_begun[0] if all_begun else asyncio.Event()
        all_begun[:] = [event]
        if len(begun) == 3:
            event.set()
        await event.wait()
        return n

    calls = "".join(f'<tool_call>{{"name": "wait", "arguments": {{"n": {n}}}}}</tool_call>' for n in range(3))
    answer, _ = chat(Scripted(chat_templates.QWEN, [calls, "ok"]), wait)
    assert [one.value for one in answer.calls] == [0, 1, 2]


def test_special_tokens_that_mark_calls_are_seen() -> None:
    """The text of a generation leaves them out."""
    markers = ("[TOOL_CALLS]", "[ARGS]")
    call = 'é: [TOOL_CALLS]add[ARGS]{"a": 2, "b": 3}[TOOL_CALLS]add[ARGS]{"a": 1, "b": 1}'
    for at_once in (1, 50):
        model = Scripted(chat_templates.MISTRAL, [call, "ok"], markers)
        model.host.tokens_at_once = at_once
        assert [one.value for one in chat(model, add)[0].calls] == [5, 2]
        malformed = Scripted(chat_templates.MISTRAL, ["hi [TOOL_CALLS]", "ok"], markers)
        assert isinstance(chat(malformed, add)[0].calls[0].error, ValueError), "a marker at the very end"


def test_an_unknown_form_is_refused_and_may_be_chosen() -> None:
    with pytest.raises(Unsupported, match="of hermes, qwen_coder, llama, mistral, deepseek, signature"):
        chat(Scripted(chat_templates.UNKNOWN, ["hi"]), add)
    with pytest.raises(Unsupported, match="form that is unknown here"):
        chat(Scripted(chat_templates.GLM, ["hi"]), add)
    assert chat(Scripted(chat_templates.UNKNOWN, ["hi"]), add, format="hermes")[0].text == "hi"
    with pytest.raises(ValueError, match="format: 'xml' is unknown"):
        chat(Scripted(chat_templates.UNKNOWN, ["hi"]), add, format="xml")


def test_fill_chat_takes_functions_and_keeps_them() -> None:
    model = Scripted(chat_templates.QWEN, ["hi"])

    async def ask() -> None:
        async with Context() as ctx:
            ctx.fill_chat("user", "one", tools=[add, look_up_slowly.declaration])
            await ctx.generate_until()
            child = ctx.fork()
            child.fill_chat("user", "two")
            child.close()
            ctx.fill_chat("user", "three", reply=[{"role": "assistant", "content": "HO"}])

    run(ask())
    assert ["Adds two numbers." in text and "look_up" in text for text in model.rendered] == [True] * 3
    assert "assistant\nhi<|end|>" in model.rendered[1]
    assert "assistant\nHO<|end|>" in model.rendered[2]
    assert "hi<|end|>" not in model.rendered[2]


def test_tools_have_names_of_their_own() -> None:
    with pytest.raises(ValueError, match="two tools are named add"):
        Tools(add, add)
    tools = Tools(add, look_up_slowly)
    assert [one.name for one in tools] == ["add", "look_up"]
    assert len(tools) == 2
    assert tools["add"](1, 2) == 3
    with pytest.raises(TypeError, match="tools: give functions"):
        Tools(7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="ctx: give the context that goes on"):
        run(tools.chat(ASK))  # type: ignore[arg-type]


def test_results_are_cut() -> None:
    def long() -> str:
        return "x" * 30_000

    call = '<tool_call>{"name": "long"}</tool_call>'
    answer, _ = chat(Scripted(chat_templates.QWEN, [call, "ok"]), long)
    assert answer.calls[0].text == "x" * 20_000 + "... (10000 more characters)"
    assert answer.calls[0].value == "x" * 30_000


def test_a_tool_for_which_something_was_cancelled_has_failed() -> None:
    async def wait() -> None:
        task = asyncio.create_task(asyncio.sleep(1000))
        task.cancel()
        await task

    answer, _ = chat(Scripted(chat_templates.QWEN, [WAIT, "ok"]), wait)
    assert (answer.text, answer.calls[0].text) == ("ok", "Error: Cancelled: what wait waited for was cancelled")
    with pytest.raises(Cancelled, match="what wait waited for"):
        chat(Scripted(chat_templates.QWEN, [WAIT, "ok"]), wait, raise_errors=True)


def test_a_chat_that_is_cancelled_or_fails_cancels_its_tools() -> None:
    model = Scripted(chat_templates.QWEN, [f"{WAIT}!"])
    told: list[str] = []

    async def ask() -> None:
        begun = asyncio.Event()

        async def wait() -> None:
            try:
                begun.set()
                await asyncio.sleep(1000)
            finally:
                await asyncio.sleep(0.001)
                told.append("cancelled")

        def fail(text: str) -> None:
            raise ZeroDivisionError(text)

        async with Context() as ctx:
            with pytest.raises(ZeroDivisionError):
                await Tools(wait).chat(ctx, ASK, on_text=fail)
            assert told == ["cancelled"]
            begun.clear()

        async with Context() as ctx:
            task = asyncio.create_task(Tools(wait).chat(ctx, ASK))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    run(ask())
    assert told == ["cancelled"] * 2
    assert not model.host.logs


@pytest.mark.parametrize("format", ["hermes", "llama", "mistral"])
def test_halves_of_surrogate_pairs_end_no_chat(format: str) -> None:
    """A model may write them in JSON, and a tool may give them."""

    def echo(text: str) -> str:
        """Gives a text back."""
        if text == "fail":
            raise ValueError("half \ud83d")
        return f"{text} half \udc1d"

    template, first, _ = CALLS[format]
    for call, told in (
        (first.replace('{"a": 2, "b": 3}', r'{"text": "\ud83d"}').replace("add", "echo"), "? half ?"),
        (first.replace('{"a": 2, "b": 3}', r'{"text": "fail"}').replace("add", "echo"), "Error: ValueError: half ?"),
        (first.replace("add", r"ec\ud83d"), "Error: there is no tool 'ec?'; there are: echo"),
    ):
        model = Scripted(template, [call + ("]" if format == "mistral" else ""), "Done."])
        answer, _ = chat(model, echo)
        assert (answer.text, [one.text for one in answer.calls]) == ("Done.", [told])


CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'


def test_a_strict_call_keeps_to_the_tools_and_their_schemas() -> None:
    wrong = CALL.replace("add", "sub").replace('"b"', '"c"')
    model = Scripted(chat_templates.QWEN, [wrong, f"So:\n{wrong}", "Five."])
    answer, _ = chat(model, add, strict=True)
    assert [(one.name, one.arguments, one.value) for one in answer.calls] == 2 * [("add", {"a": 2, "b": 3}, 5)]
    assert answer.text == "Five."


@pytest.mark.parametrize("choice", ["required", "add"])
def test_a_model_that_has_to_call_calls_first_and_then_answers(choice: str) -> None:
    begin, end = CALL.split("2")
    model = Scripted(chat_templates.QWEN, [f"{'~' * len(begin)}2{end}", "Five."])
    answer, text = chat(model, add, look_up_slowly, choice=choice)
    assert [(one.name, one.value) for one in answer.calls] == [("add", 5)]
    assert (answer.text, answer.stop_reason) == ("Five.", "stop")
    assert text.count("~") == 0


def test_a_choice_that_there_is_not_is_refused_before_anything_is_appended() -> None:
    model = Scripted(chat_templates.QWEN, ["Five."])
    with pytest.raises(TypeError, match="messages: give a role and its content, or a list of messages, not int 5"):
        chat(model, add, messages=5)
    for tools, choice, message in (
        ((add,), "sub", "choice: 'sub' is neither 'auto' nor 'required' nor a tool: there are add"),
        ((), "required", "choice: there are no tools, so none can be required"),
    ):
        with pytest.raises(ValueError, match=message):
            chat(model, *tools, choice=choice)
    assert model.rendered == []
    assert chat(model, strict=True)[0].text == "Five."
