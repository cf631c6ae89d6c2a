"""Calls of traits that a model does not implement."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tests.helpers.wit as wit
from pie_control import host_api
from pie_control.calls import CALLS
from pie_control.calls.traits import TRAITS, VERSION
from pie_control.host_api import wit_files
from pie_control.host_api.traits import refusals, traits_of
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from pie_inference.protocol import BATCHES, EXTENSIONS, ModelDescription, RunWave, WaveDone
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import run, started

OF_ALL = ["Core", "Blobs", "Http", "Topics", "Children"]
"""Traits of every model."""
INTERFACES_OF_ALL = {trait.interface for trait in TRAITS if trait.name in OF_ALL}

ALL = (*BATCHES, *EXTENSIONS)


class Partial(FakeModel):
    """A model whose worker runs some calls only, or has no tokenizer. It counts what it is asked to run."""

    def __init__(self, calls: tuple[str, ...] = ALL, **changes: Any) -> None:
        super().__init__(num_pages=64)
        self._changes = {"calls": calls, **changes}
        self.asked: set[str] = set()

    def describe(self) -> tuple[ModelDescription, ...]:
        (described,) = super().describe()
        return (msgspec.structs.replace(described, **self._changes),)

    def run(self, wave: RunWave) -> WaveDone:
        self.asked |= {type(batch).__name__ for batch in wave.batches}
        return super().run(wave)


def run_on(cache_dir: Path, model: Partial, source: str) -> Any:
    async def check() -> Any:
        async with started(cache_dir, InProcessClient(model), warm_pool=0) as server, asyncio.timeout(HANG_SECONDS):
            return await run(server, source)

    return asyncio.run(check())


# ---- what models have ----


def described(**changes: Any) -> ModelDescription:
    (found,) = Partial(**changes).describe()
    return found


def test_a_model_has_the_traits_whose_calls_its_worker_runs() -> None:
    assert tuple(trait for trait, _ in traits_of(described())) == TRAITS
    without = [trait.name for trait, _ in traits_of(described(calls=tuple(set(ALL) - {"get_logprobs"})))]
    assert without == [trait.name for trait in TRAITS if trait.name not in ("OutputText", "Fused", "Grammar")]
    assert [trait.name for trait, _ in traits_of(described(calls=()))] == OF_ALL


def test_a_trait_has_the_version_of_the_wit() -> None:
    assert {trait.version for trait in TRAITS} == {VERSION} == {wit_files.current().version}


def test_a_complete_model_refuses_nothing() -> None:
    assert refusals(described()) == {}


def test_every_call_of_a_trait_that_is_missing_is_refused() -> None:
    of_all = {"guest_source"} | INTERFACES_OF_ALL
    of_models = {function for function in wit.functions() if function.interface not in of_all}
    needs = {f"{call.name}.{parameter}" for call in CALLS.values() for parameter in call.needs}
    assert set(refusals(described(calls=(), tokenizer=b""))) == {function.name for function in of_models} | needs


@pytest.mark.parametrize("missing", ["copy_kvpage", "embed_txt", "forward", "get_next_dist", "sample", "verify"])
def test_a_refusal_names_the_trait_the_model_and_what_it_has(missing: str) -> None:
    model = described(calls=tuple(set(ALL) - {missing}))
    there = ", ".join(trait.name for trait, _ in traits_of(model))
    lacking = {trait.interface: trait.name for trait in TRAITS if trait.name not in there.split(", ")}
    assert lacking
    for function in wit.functions():
        if function.interface in lacking:
            name = function.name.replace("_", "-")
            assert refusals(model)[function.name] == (
                f"model fake does not implement {lacking[function.interface]} ({name} belongs to it); it has: {there}"
            )


# ---- what a guest sees ----

EACH_CALL = """
from inferlet_sdk import bindings

def answer(function, *arguments):
    try:
        return function(*arguments)
    except bindings.HostError as error:
        return [error.value.code, error.value.message]

def of_enum(argument):
    return bindings.allocate.Memory.EMB if argument == "EMB" else argument

def main(args, calls: list):
    queue = bindings.core.create_queue(args.model)
    return {
        name: answer(getattr(getattr(bindings, interface), name), queue, *map(of_enum, arguments))
        for interface, name, arguments in calls
    }
"""
ENUM = "enum{kvpage, emb, reserved-kvpage}"
EXAMPLES = {"bool": True, "enum": "EMB", "string": "[]", "u32": 1, "s32": 1, "f32": 1.0, "list": []}


def calls_of_queues() -> list[tuple[str, str, list[Any]]]:
    """All functions that get a queue, and arguments of the right types."""
    found = []
    for (interface, name), signature in wit_files.current().signatures.items():
        call = host_api.functions()[interface, name].call
        if interface != "core" and "queue" in inspect.signature(call).parameters:
            kinds = signature.removeprefix("func(").partition(") -> ")[0].replace(ENUM, "enum").split(", ")[1:]
            arguments = [EXAMPLES[kind.partition("<")[0]] for kind in kinds]
            found.append((interface.replace("-", "_"), name.replace("-", "_"), arguments))
    return found


def test_no_call_of_a_missing_trait_passes(guest_cache: Path) -> None:
    model = Partial(calls=(), tokenizer=b"")
    calls = calls_of_queues()
    assert {interface for interface, _, _ in calls} == {trait.interface for trait in TRAITS} - INTERFACES_OF_ALL - {
        "introspective_forward",  # what a forward may read
        "forward_with_adapter",  # what it may take
    }
    source = EACH_CALL.replace("calls: list)", "calls=CALLS)").replace("def main", f"CALLS = {calls!r}\n\ndef main")
    answers = run_on(guest_cache, model, source)
    assert len(answers) == len(calls)
    for interface, name, _ in calls:
        (trait,) = [trait.name for trait in TRAITS if trait.interface == interface]
        wanted = f"model fake does not implement {trait} ({name.replace('_', '-')} belongs to it); it has: "
        wanted += ", ".join(OF_ALL)
        assert answers[name] == ["unsupported", wanted]
    assert not model.asked


def test_what_a_partial_model_has_works_and_the_rest_is_named(guest_cache: Path) -> None:
    """Such a model served all calls, whatever its worker said: they reached it."""
    source = """
from inferlet_sdk import Context, Unsupported, traits

async def main(args):
    names = [trait.name for trait in traits.available_traits(args.model)]
    queue = traits.create_queue(args.model)
    tokens = traits.tokenize(queue, "abc")
    kv, embeds = traits.alloc_kvpage(queue), traits.alloc_emb(queue, 3)
    traits.embed_txt(queue, tokens, range(3), embeds)
    traits.forward(queue, kv, embeds, kv, embeds[-1:])
    await traits.synchronize(queue)
    refused = []
    for call in (lambda: traits.get_next_dist(queue, embeds[-1]), lambda: traits.sample(queue, embeds[-1], 1)):
        try:
            call()
        except Unsupported as error:
            refused.append(error.message)
    try:
        await Context(args.model).fill("abc").generate_until(max_tokens=5)
    except Unsupported as error:
        refused.append(error.message)
    return [names, refused, traits.usage().futures]
"""
    model = Partial(calls=("copy_emb", "copy_kvpage", "embed_txt", "forward", "shift_kvpage"))
    names, refused, futures = run_on(guest_cache, model, source)
    assert names == [*OF_ALL, "Allocate", "Forward", "InputText", "Tokenize", "Exports"]
    has = f"; it has: {', '.join(names)}"
    assert refused[0] == f"model fake does not implement OutputText (get-next-dist belongs to it){has}"
    assert refused[1] == f"model fake does not implement Fused (sample belongs to it){has}"
    assert "does not implement Fused" in refused[2]
    assert futures == 0
    assert model.asked == {"EmbedTxt", "Forward"}


def test_options_of_traits_that_are_missing_are_refused_by_name(guest_cache: Path) -> None:
    source = """
from inferlet_sdk import Unsupported, traits

async def main(args):
    queue = traits.create_queue(args.model)
    kv, embeds = traits.alloc_kvpage(queue), traits.alloc_emb(queue, 1)
    traits.embed_txt(queue, [65], [0], embeds)
    refused = []
    for options in ({"adapter": "poet"}, {"mask": [range(1)], "adapter": "poet"}):
        try:
            traits.forward(queue, kv, embeds, kv, embeds, **options)
        except Unsupported as error:
            refused.append(error.message)
    try:
        traits.forward_with_scores(queue, kv, embeds, kv, embeds, mask=[range(1)])
    except Unsupported as error:
        refused.append(error.message)
    future = traits.forward_with_dist(queue, [65], [0], embeds, kv, kv, embeds, mask=[range(1)])
    return [refused, len((await future).tokens), traits.usage().futures]
"""
    calls = tuple(set(ALL) - {"forward_with_adapter", "forward_with_scores"})
    refused, tokens, futures = run_on(guest_cache, Partial(calls=calls), source)
    assert [message.partition("; it has")[0] for message in refused] == [
        "model fake does not implement ForwardWithAdapter (`adapter` of forward belongs to it)",
        "model fake does not implement ForwardWithAdapter (`adapter` of forward belongs to it)",
        "model fake does not implement IntrospectiveForward (`scores` of forward belongs to it)",
    ]
    assert tokens > 0
    assert futures == 0


def test_a_model_without_a_tokenizer_serves_what_needs_no_text(guest_cache: Path) -> None:
    source = """
from inferlet_sdk import Unsupported, traits

async def main(args):
    queue = traits.create_queue(args.model)
    kv, embeds = traits.alloc_kvpage(queue), traits.alloc_emb(queue, 1)
    traits.embed_txt(queue, [65], [0], embeds)
    traits.forward(queue, kv, embeds, kv, embeds)
    dist = await traits.get_next_dist(queue, embeds[0])
    refused = []
    for call in (lambda: traits.tokenize(queue, "a"), lambda: traits.create_detokenizer(queue)):
        try:
            call()
        except Unsupported as error:
            refused.append(error.message)
    return [len(dist.tokens), refused, traits.get_model_info(args.model).has_chat_template]
"""
    found, refused, has_template = run_on(guest_cache, Partial(tokenizer=b""), source)
    assert found > 0
    assert not has_template
    assert [message.partition("; it has")[0] for message in refused] == [
        f"model fake does not implement Tokenize ({name} belongs to it)" for name in ("tokenize", "create-detokenizer")
    ]


def test_a_queue_that_is_gone_is_not_found_whatever_the_model_has(guest_cache: Path) -> None:
    source = """
from inferlet_sdk import NotFound, traits

def main(args):
    queue = traits.create_queue(args.model)
    traits.destroy_queue(queue)
    try:
        traits.sample(queue, 0, 1)
    except NotFound as error:
        return error.message
"""
    assert "there is no queue 1" in run_on(guest_cache, Partial(calls=()), source)


def test_core_is_a_trait_with_its_functions_and_version(guest_cache: Path) -> None:
    source = """
from dataclasses import asdict
from inferlet_sdk import traits

def main(args):
    return [asdict(trait) for trait in traits.available_traits(args.model)]
"""
    core, *_ = run_on(guest_cache, Partial(), source)
    assert (core["name"], core["version"], core["supertraits"]) == ("Core", VERSION, [])
    wanted = {function.name.replace("_", "-") for function in wit.functions() if function.interface == "core"}
    assert set(core["functions"]) == wanted


@pytest.mark.parametrize(
    ("config", "texts"),
    [
        ({"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}}, ["<s>", "</s>"]),
        ({"bos_token": None}, [None, None]),
    ],
)
def test_a_guest_is_told_the_special_tokens(config: dict[str, Any], texts: list[str | None], guest_cache: Path) -> None:
    source = """
from inferlet_sdk import traits

def main(args):
    model = traits.get_model_info(args.model)
    return [model.bos_text, model.eos_text]
"""
    assert run_on(guest_cache, Partial(tokenizer_config=config), source) == texts
