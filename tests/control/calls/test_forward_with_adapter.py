"""Adapters in commands: what is refused, and which sequences of a batch have which."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pie_control.calls.fused.runs import RunCommand
from pie_control.errors import InvalidArgument, NotFound
from pie_control.testing.fake_model import FakeModel
from pie_inference.protocol import DropAdapter, Forward, LoadAdapter
from tests.helpers.refusals import GREEDY, Q, Refusal, check_refused, prepare
from tests.helpers.scheduling import Inferlet, World, fake_model, greedy

CALL = ([0, 1], [3, 1], [0, 1], [3, 1])


def named(inferlet: Inferlet, **numbers: int) -> Inferlet:
    inferlet.space.adapters = numbers
    return inferlet


def test_an_unknown_adapter_is_refused_and_changes_nothing() -> None:
    message = "has no adapter 'poet'; it has: none"
    check_refused(Refusal(NotFound, message, "forward_with_adapter", (Q, "poet", *CALL)))
    inferlet, _ = prepare()
    named(inferlet, painter=3)
    with pytest.raises(NotFound, match="has no adapter 'poet'; it has: painter"):
        inferlet.call("forward_with_adapter", Q, "poet", *CALL)


def test_it_is_refused_as_a_forward() -> None:
    inferlet, _ = prepare()
    named(inferlet, poet=0)
    with pytest.raises(InvalidArgument, match="forward needs at least one input embed"):
        inferlet.call("forward_with_adapter", Q, "poet", [0, 1], [], [0, 1], [])
    with pytest.raises(NotFound, match="queue 9 does not exist"):
        inferlet.call("forward_with_adapter", 9, "poet", *CALL)


def decode(inferlet: Inferlet, options: str) -> None:
    inferlet.call("decode", Q, 2, GREEDY, 4, 3, [0, 4], [0, 4], 5, [9], options)


def test_a_run_has_the_adapter_that_its_options_name() -> None:
    inferlet, handed_on = prepare()
    named(inferlet, poet=7)
    with pytest.raises(NotFound, match="has no adapter 'painter'; it has: poet"):
        decode(inferlet, '{"adapter": "painter"}')
    with pytest.raises(
        InvalidArgument, match="options are a JSON object with recent, window, allowed, logprobs and adapter"
    ):
        decode(inferlet, '{"adapter": 7}')
    decode(inferlet, '{"adapter": "poet"}')
    command = handed_on[-1]
    assert isinstance(command, RunCommand)
    assert command.adapter == 7


ADAPTERS = {"poet": 0, "painter": 1}


def world_with_adapters(folder: Path) -> World:
    return World(model=model_with_adapters(folder))


def model_with_adapters(folder: Path) -> FakeModel:
    model = fake_model(num_pages=100, num_embeds=500)
    for name, number in ADAPTERS.items():
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "adapter_config.json").write_text(json.dumps({"name": name}))
        assert model.load_adapter(LoadAdapter(number, str(folder / name))).error is None
    return model


def prompt(inferlet: Inferlet, adapter: str, text: bytes) -> None:
    """Runs a prompt; its output is at embed 63."""
    named(inferlet, **ADAPTERS)
    inferlet.embed(0, len(text), tokens=list(text))
    pages, count = [inferlet.pages, inferlet.num_pages], len(text)
    arguments = (pages, [inferlet.embeds, count], pages, [inferlet.embeds + 63, 1])
    if adapter:
        inferlet.call("forward_with_adapter", Q, adapter, *arguments)
    else:
        inferlet.call("forward", Q, *arguments)


def begin(inferlet: Inferlet, adapter: str, text: bytes, steps: int) -> int:
    """A prompt, and a decode run behind it; its future."""
    prompt(inferlet, adapter, text)
    pages, options = [inferlet.pages, inferlet.num_pages], json.dumps({"adapter": adapter})
    arguments: tuple[Any, ...] = (
        inferlet.embeds + 63,
        greedy(),
        inferlet.embeds + 62,
        len(text),
        pages,
        pages,
        steps,
        [],
        options,
    )
    future: int = inferlet.call("decode", Q, *arguments)
    return future


def test_one_batch_mixes_adapters_and_none(tmp_path: Path) -> None:
    """Prompts and runs, each with the tokens that it has alone."""
    chosen = ["poet", "", "painter", "poet", "", "painter"]
    alone = []
    for adapter in chosen:
        world = world_with_adapters(tmp_path)
        inferlet = world.open(8, 64)
        future = begin(inferlet, adapter, b"Once upon", 6)
        world.drain()
        alone.append(inferlet.tokens[future])
    assert len({tuple(tokens) for tokens in alone}) == 3
    world = world_with_adapters(tmp_path)
    inferlets = [world.open(8, 64) for _ in chosen]
    futures = [begin(one, adapter, b"Once upon", 6) for one, adapter in zip(inferlets, chosen, strict=True)]
    waves = []
    while (turn := world.turn()).waves or world.sent:
        waves += [batch.adapters for wave in turn.waves for batch in wave.batches if isinstance(batch, Forward)]
        world.answer()
    assert [one.tokens[future] for one, future in zip(inferlets, futures, strict=True)] == alone
    numbers = [ADAPTERS.get(adapter, -1) for adapter in chosen]
    assert [sorted(wave.tolist()) for wave in waves if wave is not None] == [sorted(numbers)] * 6


def test_rows_of_runs_stand_behind_commands(tmp_path: Path) -> None:
    """Where only one of the two has adapters, the others have none."""
    for run, later in (("poet", ""), ("", "painter")):
        world = world_with_adapters(tmp_path)
        first, second = world.open(8, 64), world.open(8, 64)
        begin(first, run, b"abc", 5)
        world.turn()
        world.answer()
        prompt(second, later, b"xyz")
        (wave,) = world.turn().waves
        (batch,) = [one for one in wave.batches if isinstance(one, Forward)]
        assert batch.adapters is not None
        assert batch.adapters.tolist() == [ADAPTERS.get(later, -1), ADAPTERS.get(run, -1)]


def test_a_dropped_adapter_fails_the_commands_that_name_it(tmp_path: Path) -> None:
    model = model_with_adapters(tmp_path)
    world = World(model=model)
    inferlets = [world.open(8, 64) for _ in range(2)]
    futures = [begin(one, name, b"abc", 9) for one, name in zip(inferlets, ("poet", "painter"), strict=True)]
    world.turn()
    world.answer()
    world.may_fail = True
    model.drop_adapter(DropAdapter(ADAPTERS["poet"]))
    world.drain()
    assert "the worker could not run the command: forward: adapter 0 is not loaded" in str(
        inferlets[0].answers[futures[0]]
    )
    assert inferlets[0].ending is None
    assert len(inferlets[1].tokens[futures[1]]) == 9
