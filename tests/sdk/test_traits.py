"""Every function of the WIT world has one form in `inferlet_sdk.traits`, and each form does its call."""

from __future__ import annotations

import ast
import functools
import importlib
import json
import time
from array import array
from base64 import b64encode
from pathlib import Path

import pytest

import inferlet_sdk
import tests.helpers.wit as wit
from inferlet_sdk import Embeds, InvalidState, NotFound, Pages, QuotaExceeded, bindings, traits
from inferlet_sdk.event_loop import run
from inferlet_sdk.traits import arguments
from tests.helpers.native_host import NativeHost, install, nothing_held, refuse
from tests.helpers.scripted_model import STOP, State

OUTSIDE = ("exports", "http", "topics", "children")
"""Interfaces whose calls stand beside their idiomatic forms."""
FOLDERS = {**dict.fromkeys(OUTSIDE, "traits.outside"), "state": "traits.extensions"}
FORMS = {"alloc": ("alloc_kvpage", "alloc_emb", "reserve_kvpage"), "dealloc": ("dealloc_kvpage", "dealloc_emb")}
"""What the SDK calls by the names of the paper."""
FUNCTIONS = [f for f in wit.functions() if f.interface in wit.world_imports("inferlet")]


@functools.cache
def called_in_sdk() -> set[tuple[str, str]]:
    """(interface, function) of all `bindings.<interface>.<function>` in the package."""
    found = set()
    for path in Path(inferlet_sdk.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Attribute(value=ast.Attribute(value=ast.Name(id="bindings"), attr=interface), attr=name):
                    found.add((interface, name))
    return found


def test_the_wit_parser_sees_every_interface() -> None:
    assert {f.interface for f in FUNCTIONS} == wit.world_imports("inferlet")
    assert len(FUNCTIONS) > 40


def test_bindings_know_the_interfaces_of_the_guest_world() -> None:
    assert set(bindings.INTERFACES) == {f.interface for f in wit.functions()}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f"{f.interface}.{f.name}")
def test_every_wit_function_has_a_form_in_the_sdk(function: wit.WitFunction) -> None:
    assert (function.interface, function.name) in called_in_sdk()
    if not function.name.startswith(("take", "await")):  # awaiting the future takes
        folder = FOLDERS.get(function.interface, "traits")
        module = importlib.import_module(f"inferlet_sdk.{folder}.{function.interface}")
        for name in FORMS.get(function.name, (function.name,)):
            assert callable(getattr(module, name))
            assert getattr(traits, name) is getattr(module, name)


def test_the_sdk_calls_nothing_that_the_wit_lacks() -> None:
    known = {(f.interface, f.name) for f in wit.functions()} | {("core", "LogLevel"), ("allocate", "Memory")}
    assert called_in_sdk() <= known


def test_the_host_offers_the_whole_world(host: NativeHost) -> None:
    for function in wit.functions():
        assert callable(getattr(getattr(host, function.interface), function.name))


def test_only_bindings_imports_what_is_generated() -> None:
    for path in Path(inferlet_sdk.__file__).parent.rglob("*.py"):
        if path.name not in ("bindings.py", "entry.py"):
            assert "wit_world" not in path.read_text(), path


def test_the_listing_of_the_paper(host: NativeHost) -> None:
    async def main() -> list[int]:
        queue = traits.create_queue("toy")
        tokens = traits.tokenize(queue, "Hello, ")
        embeds, output = traits.alloc_emb(queue, len(tokens)), traits.alloc_emb(queue)
        kv = traits.alloc_kvpage(queue, 4)
        traits.embed_txt(queue, tokens, range(len(tokens)), embeds)
        traits.forward(queue, kv, embeds, kv, output)
        generated = []
        for position in range(len(tokens), len(tokens) + 3):
            dist = await traits.get_next_dist(queue, output[0])
            generated.append(dist.max_index())
            traits.embed_txt(queue, generated[-1:], [position], embeds[:1])
            traits.forward(queue, kv, embeds[:1], kv, output)
        traits.dealloc_emb(queue, embeds + output)
        traits.dealloc_kvpage(queue, kv)
        await traits.synchronize(queue)
        traits.destroy_queue(queue)
        return generated

    assert len(run(main())) == 3
    assert nothing_held(host)


def test_a_distribution_is_unpacked_as_far_as_it_is_looked_at() -> None:
    tokens, probabilities = array("I", [7, 2**32 - 1, 5]), array("f", [0.5, 0.25, 0.125])
    dist = traits.Dist(b64encode(tokens).decode(), b64encode(probabilities).decode(), 0.125)
    assert dist.max_index() == 7
    assert (dist._tokens, dist._probabilities) == (None, None)
    assert dist.tokens == [7, 2**32 - 1, 5]
    assert dist.tokens is dist.tokens
    assert dist.max_index() == 7
    assert dist.probabilities == [0.5, 0.25, 0.125]
    assert repr(dist) == "Dist(tokens=[7, 4294967295, 5], probabilities=[0.5, 0.25, 0.125], rest=0.125)"
    assert traits.Dist(b64encode(array("I", [258])).decode(), "", 0.0).max_index() == 258


def test_results_are_values_of_the_sdk(host: NativeHost) -> None:
    queue = traits.create_queue("toy")
    info = traits.get_model_info("toy")
    assert (info.page_size, info.stop_tokens) == (4, (STOP,))
    assert traits.available_traits("toy")[0].functions
    assert traits.get_vocabs(queue)[97:100] == [b"a", b"b", b"c"]
    assert (traits.usage().max_pages, traits.usage().max_futures) == (896, 16384)  # all that the model has
    assert traits.get_env()["user"] == "default"
    assert abs(traits.now() - time.time()) < 60


def test_sampled_tokens_feed_the_next_step_before_they_are_known(host: NativeHost) -> None:
    queue, kv, embeds = traits.create_queue("toy"), None, None
    kv, embeds = traits.alloc_kvpage(queue), traits.alloc_emb(queue, 2)
    sampler = traits.create_sampler(temperature=0)
    traits.embed_txt(queue, [97], [0], embeds[:1])
    traits.forward(queue, kv, embeds[:1], kv, embeds[1:])
    token = traits.sample(queue, embeds[1], sampler)
    traits.embed_txt(queue, [token], [1], embeds[:1])
    constrained = traits.sample(queue, embeds[1], sampler, [token], b"\xff" * 33 + b"\x07")
    traits.forward(queue, kv, embeds[:1], kv, embeds[1:])
    after = traits.get_next_dist(queue, embeds[1]).result().max_index()
    assert after == host.model.scores(((97, 0), (token.result(), 1))).argmax()
    assert isinstance(constrained.result(), int)
    traits.destroy_sampler(sampler)


def test_a_future_is_taken_once_and_awaited_often(host: NativeHost) -> None:
    host.post("hello")
    future = traits.receive()

    async def main() -> list[str]:
        return [await future, await future]

    assert run(main()) == ["hello", "hello"]
    assert host.calls.count("await_message") == 1


def test_wait_gives_those_that_are_done(host: NativeHost) -> None:
    async def main() -> tuple[bool, str]:
        message, timer = traits.receive(), traits.sleep(60)
        host.post("now")
        done = await traits.wait([message, timer])
        traits.cancel(timer)
        return done == [message], await message

    assert run(main()) == (True, "now")
    assert not host.futures


def test_a_cancelled_future_raises(host: NativeHost) -> None:
    future = traits.receive()
    traits.cancel(future)
    traits.cancel(future)
    with pytest.raises(inferlet_sdk.Cancelled):
        future.result()


def test_errors_keep_code_and_message() -> None:
    install(max_pages=1)
    with pytest.raises(NotFound, match="no model 'x'") as caught:
        traits.create_queue("x")
    assert caught.value.code == "not-found"
    with pytest.raises(QuotaExceeded):
        traits.alloc_kvpage(traits.create_queue("toy"), 2)


def test_every_error_code_has_its_class() -> None:
    classes = inferlet_sdk.PieError.__subclasses__()
    classes += [narrower for error in classes for narrower in error.__subclasses__()]
    assert {error.code for error in classes} == wit.error_codes()


def test_a_code_of_the_future_is_a_plain_failure_that_keeps_it(
    host: NativeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seals(_queue: int, _kind: str, _count: int) -> int:
        raise refuse("sealed", "page 3 is sealed")

    monkeypatch.setattr(bindings.allocate, "alloc", seals)
    with pytest.raises(inferlet_sdk.PieError, match="page 3 is sealed") as caught:
        traits.alloc_kvpage(1)
    assert (type(caught.value), caught.value.code) == (inferlet_sdk.PieError, "sealed")
    assert inferlet_sdk.PieError.code == "invalid-argument"


def test_settings_of_a_sampler_cross_by_name(host: NativeHost) -> None:
    given: list[dict[str, object]] = []

    def create_sampler(config: str) -> int:
        given.append(json.loads(config))
        return 1

    host.fused.create_sampler = create_sampler
    traits.create_sampler(top_k=7, seed=2**64 - 1)
    traits.create_sampler(logit_bias={7: -5})
    assert given[0] == {
        "temperature": 1.0,
        "top_k": 7,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "logit_bias": None,
        "seed": 2**64 - 1,
        "typical_p": 1.0,
    }
    assert given[1]["logit_bias"] == {"7": -5.0}


def test_misuse_is_told_before_the_host_is_asked(host: NativeHost) -> None:
    with pytest.raises(TypeError, match=r"json\.dumps"):
        traits.send(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="log level"):
        traits.log("x", "loud")  # type: ignore[arg-type]
    assert host.calls == []


def test_a_list_with_a_wrong_number_raises_one_error() -> None:
    for check in (arguments.numbers, arguments.references):
        with pytest.raises(ValueError, match=r"tokens\[1\]: -1 is not between 0") as caught:
            check([3, -1], "tokens")
        assert caught.value.__context__ is None


def test_a_stop_string_is_text() -> None:
    with pytest.raises(ValueError, match=r"stop\[1\]: character 1 is half of a surrogate pair"):
        inferlet_sdk.StopString("a", "a\ud800")


def test_log_levels(host: NativeHost) -> None:
    traits.log("a")
    traits.log(ValueError("b"), "error")
    assert host.logs == ["info: a", "error: b"]


def test_without_a_host_the_error_says_how_to_run() -> None:
    with pytest.raises(RuntimeError, match="pie run"):
        bindings._NoHost("core").send("x")


class Watched:
    """A host, and the tokens and positions that are seen when a distribution is read."""

    def __init__(self) -> None:
        self._state: State = ()
        install(next_token=self._look)

    def _look(self, state: State) -> int:
        self._state = state
        return 0

    def by(self, queue: int, embed: int) -> State:
        """What was seen for an output."""
        traits.get_next_dist(queue, embed).result()
        return self._state


def test_copy_and_trim_name_slots() -> None:
    watched = Watched()
    queue = traits.create_queue("toy")
    pages, embeds = traits.alloc_kvpage(queue, 2), traits.alloc_emb(queue, 6)
    traits.embed_txt(queue, range(97, 103), range(6), embeds)
    traits.forward(queue, [], embeds, pages)
    other = traits.alloc_kvpage(queue)
    traits.copy_kvpage(queue, pages.slots(4)[4:6], other.slots(4)[:2])
    for seen in ([(101, 4), (102, 5)], [(97, 0), (98, 1), (99, 2)]):
        traits.embed_txt(queue, [120], [6], embeds[:1])
        traits.forward(queue, other if seen[0][1] else pages, embeds[:1], (), embeds[:1])
        assert watched.by(queue, embeds[0]) == (*seen, (120, 6))
        traits.trim_kvpage(queue, pages, 3)


def test_hidden_tokens_are_named_by_their_places_along_the_pages() -> None:
    watched = Watched()
    queue = traits.create_queue("toy")
    pages, embeds = traits.alloc_kvpage(queue, 2), traits.alloc_emb(queue, 7)
    traits.embed_txt(queue, range(97, 103), range(6), embeds[:6])
    traits.forward(queue, [], embeds[:6], pages)
    seen = []
    for hidden in (range(1, 4), [0, 5, 4], range(0), ()):
        traits.mask_kvpage(queue, pages, hidden)
        traits.embed_txt(queue, [120], [6], embeds[6:])
        traits.forward(queue, pages, embeds[6:], (), embeds[6:])
        seen.append([token - 97 for token, _ in watched.by(queue, embeds[6])[:-1]])
    assert seen == [[0, 4, 5], [1, 2, 3], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]]
    with pytest.raises(TypeError, match="hidden: give places counted from 0 on"):
        traits.mask_kvpage(queue, pages, pages.slots(4)[:2])
    with pytest.raises(ValueError, match="is not between 0"):
        traits.mask_kvpage(queue, pages, range(-2, 1))
    with pytest.raises(InvalidState, match="holds no token"):
        traits.mask_kvpage(queue, pages, [6])


def test_a_mask_says_what_each_input_sees() -> None:
    watched = Watched()
    queue = traits.create_queue("toy")
    page, embeds = traits.alloc_kvpage(queue), traits.alloc_emb(queue, 5)
    traits.embed_txt(queue, range(97, 102), range(5), embeds)
    traits.forward(queue, [], embeds[:3], page)
    traits.forward_with_mask(queue, page, embeds[3:], [], embeds[3:], [range(1, 4), [0, 2, 4]])
    seen = [[token - 97 for token, _ in watched.by(queue, embed)] for embed in embeds[3:]]
    assert seen == [[1, 2, 3], [0, 2, 4]]
    with pytest.raises(TypeError, match=r"mask\[1\]: give"):
        traits.forward_with_mask(queue, page, embeds[3:], [], embeds[3:], [range(1, 4), 5])  # type: ignore[list-item]


def test_a_copied_output_is_an_output(host: NativeHost) -> None:
    queue = traits.create_queue("toy")
    page, embeds = traits.alloc_kvpage(queue), traits.alloc_emb(queue, 4)
    traits.embed_txt(queue, [97, 98], range(2), embeds[:2])
    traits.forward(queue, page, embeds[:2], page, embeds[:1])
    traits.copy_emb(queue, embeds[:2], embeds[2:])
    dists = [traits.get_next_dist(queue, embed).result() for embed in (embeds[0], embeds[2])]
    assert dists[0].tokens == dists[1].tokens
    with pytest.raises(TypeError, match="source: give Embeds"):
        traits.copy_emb(queue, page, embeds[:1])


def test_addresses_cut_and_join() -> None:
    pages = Pages((10, 4)) + Pages((14, 2)) + Pages((30, 3))
    assert pages.ranges == (10, 6, 30, 3)
    assert list(pages[4:8]) == [14, 15, 30, 31]
    assert pages[-1] == 32
    assert pages[4:8].ranges == (14, 2, 30, 2)
    assert list(pages[::4]) == [10, 14, 32]
    assert pages[::-1][0] == 32
    assert Pages.of([1, 2, 3, 7]).ranges == (1, 3, 7, 1)
    assert Pages.of([1, 2]) == Pages((1, 2))
    assert Pages.of([1, 2]) != Embeds((1, 2))
    assert repr(pages) == "Pages[10:16, 30:33]"
    with pytest.raises(IndexError):
        pages[9]
