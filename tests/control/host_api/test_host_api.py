"""The host functions against the WIT, the traits, and what a guest sees of errors and information."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tests.helpers.wit as wit
from pie_control import errors, host_api
from pie_control.calls.traits import TRAITS
from pie_control.host_api.limits import bounds
from pie_control.host_api.traits import traits_of
from pie_control.inference_client.interface import ModelRunner
from pie_control.server_api import ServerApi
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from pie_inference.protocol import Failure, GetNextDist, ModelDescription, RunWave, WaveDone
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import launch, run, started


def on_server(
    cache_dir: Path, body: Callable[[ServerApi], Awaitable[None]], model: ModelRunner | None = None, **options: Any
) -> None:
    async def check() -> None:
        client = InProcessClient(model or FakeModel(num_pages=64))
        async with started(cache_dir, client, warm_pool=0, **options) as server, asyncio.timeout(HANG_SECONDS):
            await body(server)

    asyncio.run(check())


# ---- contract ----


def test_every_bound_is_of_a_parameter_that_exists() -> None:
    parameters = {(function.interface, function.name): function.parameters for function in wit.functions()}
    for function, most in bounds._OF_ONE.items():
        assert set(most) <= set(parameters[function])
    assert all(any(name in names for names in parameters.values()) for name in bounds._OF_ALL)


def python_name(name: str) -> str:
    return name.replace("-", "_")


def test_every_function_of_the_wit_has_a_host_function_and_none_is_left_over() -> None:
    offered = {(python_name(interface), python_name(name)) for interface, name in host_api.functions()}
    wanted = {(function.interface, function.name) for function in wit.functions()}
    assert offered == wanted


@pytest.mark.parametrize("function", wit.functions(), ids=lambda one: f"{one.interface}.{one.name}")
def test_parameters_have_the_names_of_the_wit(function: wit.WitFunction) -> None:
    call = host_api.functions()[function.interface.replace("_", "-"), function.name.replace("_", "-")].call
    _, *names = inspect.signature(call).parameters
    assert tuple(names) == function.parameters


def functions_of_traits() -> dict[str, tuple[str, ...]]:
    (described,) = FakeModel().describe()
    return {trait.name: functions for trait, functions in traits_of(described)}


def test_traits_list_the_functions_of_their_interfaces() -> None:
    by_interface: dict[str, set[str]] = {}
    for function in wit.functions():
        by_interface.setdefault(function.interface.replace("_", ""), set()).add(function.name.replace("_", "-"))
    of_models = {name: functions for name, functions in by_interface.items() if name != "guestsource"}
    of_options = {"forwardwithadapter": set[str](), "introspectiveforward": set[str]()}  # of `forward`
    assert {name.lower(): set(functions) for name, functions in functions_of_traits().items()} == of_models | of_options


def test_supertraits_exist_and_make_no_circle() -> None:
    by_name = {trait.name: trait for trait in TRAITS}

    def above(name: str) -> set[str]:
        return {name}.union(*(above(one) for one in by_name[name].supertraits))

    assert all(above(name) <= set(by_name) for name in by_name)


def test_every_error_has_a_code_that_the_wit_documents() -> None:
    found = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.CallError)]
    assert {error.code for error in found} == wit.error_codes()


# ---- what a guest sees ----

CODES = """
from inferlet_sdk.bindings import core, allocate, forward, fused, input_text, output_text, tokenize

def refused(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        return error.value.code

def main(args):
    queue = core.create_queue(args.model)
    sampler = fused.create_sampler('{"temperature": 0}')
    embed = allocate.alloc(queue, allocate.Memory.EMB, 1)
    input_text.embed_txt(queue, [65], [0], [embed, 1])
    forward.forward(queue, [], [embed, 1], [], [embed, 1], [], [], [], "", 0, 0, 0.0, False)
    future = output_text.get_next_dist(queue, [embed, 1], 5, 1.0)
    core.wait([future])
    seen = {
        "a mask": refused(fused.sample, queue, embed, sampler, [], "no base64, ü!", 0),
        "no future": refused(core.await_number, 12345),
        "a long message": refused(core.send, 0, "x" * 2_000_000),
        "more pages than there are": refused(allocate.alloc, queue, allocate.Memory.KVPAGE, 65),
        "no template": refused(tokenize.format_chat, queue, "[]", "", True),
        "a worker that fails": refused(output_text.await_dists, future),
        "no model to use": refused(core.create_queue, "no such model"),
        "no model to describe": refused(core.get_model_info, "no such model"),
        "no queue": refused(core.drop, queue + 1000),
        "no detokenizer": refused(tokenize.push_tokens, 77, []),
    }
    core.drop(queue)
    return seen | {"a queue that is gone": refused(core.synchronize, queue)}
"""


class Poor(FakeModel):
    """A model without a chat template, whose worker cannot tell what comes next."""

    def __init__(self) -> None:
        super().__init__(num_pages=64)

    def describe(self) -> tuple[ModelDescription, ...]:
        (described,) = super().describe()
        return (msgspec.structs.replace(described, tokenizer_config={}),)

    def run(self, wave: RunWave) -> WaveDone:
        done = super().run(wave)
        failed = [place for place, batch in enumerate(wave.batches) if isinstance(batch, GetNextDist)]
        results = tuple(None if place in failed else result for place, result in enumerate(done.results))
        failures = tuple(Failure(place, 0, "out of memory") for place in failed)
        return WaveDone(done.wave, results, done.seconds, failures)


def test_error_codes_reach_the_guest(guest_cache: Path) -> None:
    """All but `cancelled`, of which only those hear whose inferlet has ended."""

    async def body(server: ServerApi) -> None:
        assert await run(server, CODES) == {
            "a mask": "invalid-argument",
            "no future": "not-found",
            "a long message": "quota-exceeded",
            "more pages than there are": "exhausted",
            "no template": "unsupported",
            "a worker that fails": "worker-failed",
            "no model to use": "not-found",
            "no model to describe": "not-found",
            "no queue": "not-found",
            "no detokenizer": "not-found",
            "a queue that is gone": "not-found",
        }

    on_server(guest_cache, body, Poor())


INFORMATION = """
from dataclasses import asdict
from inferlet_sdk import traits

async def main(args):
    queue = traits.create_queue(args.model)
    traits.alloc_kvpage(queue, 3)
    traits.alloc_emb(queue, 5)
    await traits.synchronize(queue)
    usage = asdict(traits.usage())
    return [
        traits.available_models(),
        asdict(traits.get_model_info(args.model)),
        [asdict(trait) for trait in traits.available_traits(args.model)],
        usage,
        traits.get_env(),
    ]
"""


def test_information_is_that_of_model_and_limits(guest_cache: Path) -> None:
    async def body(server: ServerApi) -> None:
        inferlet, listener = await launch(server, INFORMATION)
        ended = await listener.ended
        assert ended.status == "finished", ended.error
        models, model, traits, usage, environment = json.loads(ended.result or "")
        (described,) = server.models()
        assert models == ["fake"]
        assert model == {
            "name": "fake",
            "architecture": "FakeModel",
            "page_size": described.page_size,
            "vocab_size": described.vocab_size,
            "hidden_size": described.hidden_size,
            "max_context": described.max_context,
            "max_batch_tokens": described.max_batch_tokens,
            "max_dist": described.max_dist,
            "bos_text": "<|begin|>",
            "eos_text": "<|end|>",
            "stop_tokens": list(described.stop_tokens),
            "has_chat_template": True,
            "image_token": 255,
            "moves_tokens": True,
            "begin_tokens": [],
            "end_tokens": [],
            "pooling": "",
            "sampling": {},
            "state_pages": 0,
        }
        assert {trait["name"]: trait["functions"] for trait in traits} == {
            name: list(functions) for name, functions in functions_of_traits().items()
        }
        assert (usage["pages"], usage["embeds"], usage["queues"]) == (3, 5, 1)
        assert (usage["max_pages"], usage["max_futures"]) == (30, 50)
        assert usage["max_cpu_nanoseconds"] == 60_000_000_000
        assert environment["inferlet"] == inferlet.id
        assert environment["program"] == inferlet.program.hash
        assert environment["user"] == "default"

    on_server(guest_cache, body, max_pages=30, max_futures=50)


def test_the_queue_of_another_inferlet_is_not_found(guest_cache: Path) -> None:
    owns = """
from inferlet_sdk import traits
async def main(args):
    queues = [traits.create_queue(args.model) for _ in range(5)]
    await args.send(str(queues[-1]))
    await args.receive()
"""
    steals = """
from inferlet_sdk import NotFound, traits
def main(args, queue: int):
    try:
        traits.alloc_kvpage(queue, 1)
    except NotFound as error:
        return str(error)
"""

    async def body(server: ServerApi) -> None:
        _, listener = await launch(server, owns)
        await listener.until_messages(1)
        queue = int(listener.messages[0])
        assert f"no queue {queue}" in await run(server, steals, {"queue": queue})
        assert not listener.ended.done()

    on_server(guest_cache, body)


def test_cancelled_receives_lose_and_reorder_nothing(guest_cache: Path) -> None:
    program = """
from inferlet_sdk.bindings import core
async def main(args):
    futures = [core.receive(0) for _ in range(4)]
    await args.send("ready")
    core.wait(futures[2:3])
    core.cancel(futures[0])
    core.cancel(futures[1])
    core.wait(futures[3:4])
    return [core.await_message(futures[2])[0], core.await_message(futures[3])[0], await args.receive()]
"""

    async def body(server: ServerApi) -> None:
        inferlet, listener = await launch(server, program)
        await listener.until_messages(1)
        for text in ("0", "1", "2"):
            inferlet.send(text)
        ended = await listener.ended
        assert ended.result == '["2", "0", "1"]'

    on_server(guest_cache, body)


def test_a_detokenizer_of_a_model_with_fewer_tokens_does_not_follow_a_run(guest_cache: Path) -> None:
    program = """
from inferlet_sdk import InvalidArgument, bindings, traits
from inferlet_sdk.errors import call

def begin(queue):
    kv, embeds, sampler = traits.alloc_kvpage(queue, 1), traits.alloc_emb(queue, 3), traits.create_sampler()
    traits.embed_txt(queue, [65, 66], [0, 1], embeds[:2])
    traits.forward(queue, kv, embeds[:2], kv, embeds[2:])
    ranges = list(kv.ranges)
    return call(bindings.fused.decode, queue, embeds[2], sampler, embeds[0], 2, ranges, ranges, 4, [], "", 0, 0)

def main(args):
    queues = [traits.create_queue(model) for model in ("many", "few")]
    many, few = (traits.create_detokenizer(queue) for queue in queues)
    run = begin(queues[0])
    told = []
    for use in (lambda: bindings.fused.watch_run(run, few, ""), lambda: bindings.fused.take_run(run, few)):
        try:
            call(use)
        except InvalidArgument as error:
            told.append(str(error))
    call(bindings.fused.watch_run, run, many, "")
    other = begin(queues[1])
    call(bindings.fused.watch_run, other, many, "")
    return [told, [len(call(bindings.fused.take_run, one, 0)[0]) for one in (run, other)]]
"""

    async def check() -> None:
        clients = InProcessClient(FakeModel("many")), InProcessClient(FakeModel("few", vocab_size=80))
        options = {"model": ["many=demo", "few=demo"], "warm_pool": 0}
        async with started(guest_cache, *clients, **options) as server, asyncio.timeout(HANG_SECONDS):
            told, taken = await run(server, program)
            assert ["belongs to another model" in one for one in told] == [True, True]
            assert taken == [4, 4]

    asyncio.run(check())
