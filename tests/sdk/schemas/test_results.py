"""`generate_as`: what the model writes becomes an instance, or an error that leaves the context as it was."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from inferlet_sdk import Context, DistSampler, Sampler, SchemaMismatch, Truncated, UnsupportedType
from inferlet_sdk.event_loop import run
from inferlet_sdk.schemas import json_schema
from tests.helpers.native_host import install, nothing_held, tokenized
from tests.helpers.scripted_model import STOP, State

PROMPT = "Write JSON: "


@dataclass
class Item:
    name: str
    price: float


PEN = '{"name": "the pen", "price": 2}'


class Writer:
    """A model that writes one of `texts` after the prompt: another one for each sampler that is made."""

    def __init__(self, texts: Sequence[str], grammars: bool = False) -> None:
        self._said = [[*tokenized(text), STOP] for text in texts]
        self._start = len(tokenized(PROMPT))
        self.host = install(next_token=self._next_token)
        if not grammars:
            info = json.loads(self.host.core.get_model_info("toy"))
            left = [trait for trait in info["traits"] if trait["name"] != "Grammar"]
            self.host.core.get_model_info = lambda _: json.dumps(info | {"traits": left})

    def _next_token(self, seen: State) -> int:
        made = sum(call == "create_sampler" for call in self.host.calls)
        tokens = self._said[min(max(made, 1), len(self._said)) - 1]
        return tokens[min(seen[-1][1] + 1 - self._start, len(tokens) - 1)]


def outcome(writer: Writer, kind: Any, *arguments: Any, **options: Any) -> tuple[Any, str]:
    async def ask() -> tuple[Any, str]:
        async with Context() as ctx:
            ctx.fill(PROMPT)
            try:
                value = await ctx.generate_as(kind, *arguments, **options)
            except SchemaMismatch as error:
                value = error
            return value, ctx.text

    result = run(ask())
    assert nothing_held(writer.host)
    return result


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (PEN, PEN),
        ("\n" + PEN, "\n" + PEN),
        ("Sure: ```json\n" + PEN + "\n``` is it, the JSON.", "Sure: ```json\n" + PEN),
        (PEN + "..", PEN),
    ],
)
@pytest.mark.parametrize("at_once", [1, 7])
def test_the_first_value_counts_and_the_context_ends_with_it(written: str, kept: str, at_once: int) -> None:
    writer = Writer([written])
    writer.host.tokens_at_once = at_once
    assert outcome(writer, Item, 100) == (Item("the pen", 2.0), PROMPT + kept)


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [(int, "42", 42), (int, " 42 is it", 42), (Literal["yes", "no"], '"no".', "no"), (list[int], "[1, 2]", [1, 2])],
)
def test_scalars_and_lists(kind: Any, written: str, value: Any) -> None:
    assert outcome(Writer([written]), kind, 60)[0] == value


def test_what_does_not_fit_is_written_again() -> None:
    writer = Writer(['{"name": 1, "price": 2}', "no JSON", PEN])
    assert outcome(writer, Item, 100) == (Item("the pen", 2.0), PROMPT + PEN)
    assert writer.host.calls.count("create_sampler") == 3


def test_after_the_last_attempt_the_error_says_what_was_wrong() -> None:
    writer = Writer(['{"name": 1, "price": 2}'])
    error, text = outcome(writer, Item, 100, attempts=2)
    assert str(error) == "$.name: expected a string, got 1"
    assert error.text == '{"name": 1, "price": 2}'
    assert (text, writer.host.calls.count("create_sampler")) == (PROMPT, 2)


@dataclass
class Cheap(Item):
    def __post_init__(self) -> None:
        if self.price > 1:
            raise AssertionError


@pytest.mark.parametrize("grammars", [False, True])
def test_what_an_own_check_refuses_is_written_again(grammars: bool) -> None:
    writer = Writer([PEN, '{"name": "the pen", "price": 1}'], grammars)
    assert outcome(writer, Cheap, 100)[0] == Cheap("the pen", 1.0)
    error, text = outcome(Writer([PEN], grammars), Cheap, 100)
    assert (str(error), text) == ("$: Cheap refuses it: AssertionError", PROMPT)


@pytest.mark.parametrize("grammars", [False, True])
@pytest.mark.parametrize("closes", [False, True])
def test_after_a_timeout_or_an_error_the_context_is_as_before(grammars: bool, closes: bool) -> None:
    writer = Writer([PEN], grammars)
    taken = writer.host.fused.take_run

    def some(*given: Any) -> Any:
        if len(ctx.tokens) > len(tokenized(PROMPT)) + 3:
            if closes:
                ctx.close()
            raise KeyboardInterrupt
        return taken(*given)

    ctx = Context().fill(PROMPT)
    writer.host.fused.take_run = some
    with pytest.raises(KeyboardInterrupt):
        run(ctx.generate_as(Item, 100))
    assert closes or ctx.text == PROMPT
    ctx.close()
    assert nothing_held(writer.host)


def test_a_value_that_is_cut_off_asks_for_more_tokens() -> None:
    error, text = outcome(Writer([PEN]), Item, 8)
    assert type(error) is Truncated
    assert "max_tokens (8)" in str(error)
    assert "raise max_tokens" in str(error)
    assert text == PROMPT


def test_a_type_without_schema_is_refused_before_anything_runs() -> None:
    writer = Writer([PEN])

    async def ask() -> None:
        async with Context() as ctx:
            await ctx.fill(PROMPT).generate_as(bytes)

    with pytest.raises(UnsupportedType, match="bytes"):
        run(ask())
    assert "create_sampler" not in writer.host.calls


class Guided(Context):
    """A context that keeps to the schema that it is given."""

    asked: list[Any] = []  # noqa: RUF012

    def generate(self, *arguments: Any, **options: Any) -> Any:
        self.asked.append(options.pop("schema", None))
        return super().generate(*arguments, **options)


@dataclass
class Pile:
    top: Item
    rest: Pile | None


def test_a_model_with_grammars_is_kept_to_the_schema() -> None:
    written = f'{{"top": {PEN}, "rest": {{"top": {PEN}, "rest": null}}}}'
    pen = Item("the pen", 2.0)
    for text in (written, written.replace("null", "[]").replace("top", "tip")):
        assert outcome(Writer([text], grammars=True), Pile, 200)[0] == Pile(pen, Pile(pen, None))
    writer = Writer([PEN], grammars=True)

    async def ask(**options: Any) -> Any:
        async with Guided() as ctx:
            return await ctx.fill(PROMPT).generate_as(Item, **options)

    assert run(ask()) == run(ask(sampler=Sampler(seed=3))) == Item("the pen", 2.0)
    assert run(ask(sampler=DistSampler(lambda dist: dist.tokens[0]))) == Item("the pen", 2.0)
    assert Guided.asked == [json_schema(Item), json_schema(Item), None]
    assert nothing_held(writer.host)
