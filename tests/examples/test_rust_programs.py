"""Programs in Rust: their components are made of their sources, and do what the same programs in Python do."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from inferlet_sdk.schemas.json_values import parse_json
from inferlet_sdk.schemas.mismatch import SchemaMismatch
from pie_control.inferlets.events import Ended
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from pie_inference.config import WorkerConfig
from pie_inference.serving.worker import Worker
from tests.helpers import rust_programs
from tests.helpers.families import save_reference
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import Listener, started
from tests.helpers.tiers import WHOLE
from tests.helpers.tree import DEMO_MODEL, ROOT
from tests.inference.models.test_state import DENSE, SETTINGS
from tests.sdk.test_adapters_in_guest import write

FOLDER = ROOT / "tests" / "rust"
FEATURES = (
    "stop",
    "sampled",
    "drafted",
    "constrained",
    "cut",
    "windowed",
    "joined",
    "exported",
    "scored",
    "together",
    "stepped",
)


@pytest.fixture(scope="module")
def worker() -> Worker:
    return Worker(WorkerConfig(DEMO_MODEL, "demo", dtype="float32", device="cpu", pages=512, embeds=4096, threads=1))


async def ends_of(
    worker: Worker, cache: Path, runs: list[tuple[bytes, str, str]], words: Sequence[str] = (), **settings: object
) -> list[Ended]:
    """How programs end, each given as its bytes, its name and what it shall do, with further words."""
    async with started(cache, InProcessClient(worker), model=["demo"], warm_pool=0, **settings) as server:
        ends = []
        for data, name, what in runs:
            info, listener = await server.upload(data, name), Listener()
            await server.launch(info.program, [f"what={what}", *words], listener=listener)
            async with asyncio.timeout(HANG_SECONDS):
                ends.append(await listener.ended)
        return ends


def features() -> tuple[bytes, str]:
    path = rust_programs.component(FOLDER)
    return path.read_bytes(), path.name


def result(ended: Ended) -> Any:
    assert (ended.status, ended.error) == ("finished", None)
    return json.loads(ended.result or "null")


@pytest.mark.parametrize("folder", rust_programs.FOLDERS, ids=lambda folder: folder.parent.name)
def test_a_component_is_made_of_its_sources(folder: Path) -> None:
    record = rust_programs.recorded(folder)
    assert record["sources"] == rust_programs.sources(folder), "run scripts/update_rust"
    assert record["component"] == rust_programs.digest(rust_programs.component(folder)), "run scripts/update_rust"


def test_context_does_in_rust_what_it_does_in_python(worker: Worker, guest_cache: Path) -> None:
    python = (FOLDER / "features.py").read_bytes(), "features.py"
    runs = [(*program, what) for what in FEATURES for program in (features(), python)]
    results = list(map(result, asyncio.run(ends_of(worker, guest_cache, runs))))
    assert dict(zip(FEATURES, results[::2], strict=True)) == dict(zip(FEATURES, results[1::2], strict=True))


def test_context_does_so_at_a_model_that_keeps_states(guest_cache: Path, tmp_path: Path) -> None:
    save_reference(tmp_path, DENSE, **SETTINGS)
    config = WorkerConfig(tmp_path, "demo", dtype="float32", device="cpu", pages=512, embeds=4096, states=64)
    python = (FOLDER / "features.py").read_bytes(), "features.py"
    features_of = [one for one in FEATURES if one not in ("cut", "windowed", "joined", "constrained")]
    runs = [(*program, what) for what in features_of for program in (features(), python)]
    results = list(map(result, asyncio.run(ends_of(Worker(config), guest_cache, runs))))
    assert dict(zip(features_of, results[::2], strict=True)) == dict(zip(features_of, results[1::2], strict=True))


def test_contexts_at_once_wait_for_what_the_others_have(worker: Worker, guest_cache: Path) -> None:
    runs = [(*features(), "crowded"), ((FOLDER / "features.py").read_bytes(), "features.py", "crowded")]
    rust, python = map(result, asyncio.run(ends_of(worker, guest_cache, runs, max_embeds=400)))
    assert rust == python
    assert rust[-2] == 100


def test_a_generation_that_has_begun_goes_to_the_client_as_it_comes(worker: Worker, guest_cache: Path) -> None:
    async def run() -> tuple[Any, list[str]]:
        async with started(guest_cache, InProcessClient(worker), model=["demo"], warm_pool=0) as server:
            info, listener = await server.upload(*features()), Listener()
            await server.launch(info.program, ["what=begun"], listener=listener)
            async with asyncio.timeout(HANG_SECONDS):
                return result(await listener.ended), "".join(listener.messages).split("|")

    (piece, rest, text, to_stop, rest_to_stop, text_to_stop, everything), sent = asyncio.run(run())
    assert piece + rest == everything
    assert text.endswith(everything)
    assert text_to_stop.endswith(to_stop + rest_to_stop)
    assert everything.startswith(to_stop + rest_to_stop)
    assert len(to_stop + rest_to_stop) <= len(everything) - 8
    assert sent == [rest, rest_to_stop, ""]
    assert rest


def test_a_step_of_the_program_on_the_queue_of_a_context_is_none_of_its_own(worker: Worker, guest_cache: Path) -> None:
    (ended,) = asyncio.run(ends_of(worker, guest_cache, [(*features(), "raw")]))
    assert result(ended) == [True] * 4


def test_topics_and_children(worker: Worker, guest_cache: Path) -> None:
    (ended,) = asyncio.run(ends_of(worker, guest_cache, [(*features(), "talk")]))
    assert result(ended) == [
        1,
        '"hello"\n\U0001f41d',
        "one parent",
        {"half": 0.5, "list": [1, None, True]},
        "failed",
        True,
        [None, "quota-exceeded", "quota-exceeded", True],
    ]


def test_a_task_is_woken_by_another_one(worker: Worker, guest_cache: Path) -> None:
    (ended,) = asyncio.run(ends_of(worker, guest_cache, [(*features(), "woken")]))
    assert result(ended) == "woken"


def test_tasks_that_only_wake_each_other_let_the_host_go_on(worker: Worker, guest_cache: Path) -> None:
    (ended,) = asyncio.run(ends_of(worker, guest_cache, [(*features(), "turns")], cpu_seconds=1.0, max_futures=50))
    assert result(ended) == "over"


def test_a_task_that_fails_ends_those_beside_it(worker: Worker, guest_cache: Path) -> None:
    """What they would have got is left to the next one."""

    async def run() -> Any:
        async with started(guest_cache, InProcessClient(worker), model=["demo"], warm_pool=0) as server:
            info, listener = await server.upload(*features()), Listener()
            launched = await server.launch(info.program, ["what=hasty"], listener=listener)
            async with asyncio.timeout(HANG_SECONDS):
                await listener.until_messages(1)
                server.send(launched.id, "later")
                return result(await listener.ended)

    assert asyncio.run(run()) == ["one has failed", "later"]


def test_tasks_go_on_beside_what_is_awaited(worker: Worker, guest_cache: Path) -> None:
    async def run() -> Any:
        async with started(guest_cache, InProcessClient(worker), model=["demo"], warm_pool=0) as server:
            info, listener = await server.upload(*features()), Listener()
            launched = await server.launch(info.program, ["what=tasks"], listener=listener)
            async with asyncio.timeout(HANG_SECONDS):
                await listener.until_messages(1)
                server.send(launched.id, "left to the next one")
                return result(await listener.ended)

    first = ["beside them", 3, "the first one", "a later one"]
    assert asyncio.run(run()) == [*first, "left to the next one", True]


def test_there_are_clocks_and_random_numbers(worker: Worker, guest_cache: Path) -> None:
    before = time.time()
    (ended,) = asyncio.run(ends_of(worker, guest_cache, [(*features(), "time")]))
    is_later, now, differ = result(ended)
    assert is_later
    assert differ
    assert before <= now <= time.time()


def test_what_fails_now_and_then_is_tried_again(worker: Worker, guest_cache: Path) -> None:
    (ended,) = asyncio.run(ends_of(worker, guest_cache, [(*features(), "tried again")]))
    assert result(ended) == [
        *("it works", 3, "timed-out: not yet (tried 2 times)", 2, "not-found: not yet", 1),
        *("invalid-argument: times: nothing can be tried 0 times: give 1 or more", 0),
    ]


def test_an_export_is_found_with_the_adapter_that_it_was_made_with(guest_cache: Path, tmp_path: Path) -> None:
    async def run() -> Any:
        write(tmp_path, ("poet", "painter"))
        given = [f"{name}={tmp_path / name}" for name in ("poet", "painter")]
        async with started(guest_cache, InProcessClient(FakeModel()), adapter=given, warm_pool=0) as server:
            info, listener = await server.upload(*features()), Listener()
            await server.launch(info.program, ["what=adapted"], listener=listener)
            async with asyncio.timeout(HANG_SECONDS):
                return result(await listener.ended)

    made = 'invalid-state: export "king" was made'
    assert asyncio.run(run()) == [
        *(f'{made} with adapter "poet": open it with adapter "poet"', True),
        *(f'{made} without an adapter: open it with adapter ""', True),
        *("found", True),
    ]


def test_blobs_that_a_program_drops_are_given_back(worker: Worker, guest_cache: Path) -> None:
    async def run() -> Any:
        settings = {"model": ["demo"], "warm_pool": 0, "max_blob_bytes": 400_000}
        async with started(guest_cache, InProcessClient(worker), **settings) as server:
            given, sent = [await server.upload_blob(byte * 300_000) for byte in (b"a", b"b")]
            info, listener = await server.upload(*features()), Listener()
            launched = await server.launch(info.program, ["what=received"], blobs={"given": given}, listener=listener)
            async with asyncio.timeout(HANG_SECONDS):
                for count in range(1, 4):
                    await listener.until_messages(count)
                    server.send(launched.id, "here it is", {"sent": sent})
                return result(await listener.ended)

    given, *received = asyncio.run(run())
    assert given == ["given", 300_000, ord("a"), [ord("a")] * 2]
    assert received == [["sent", 300_000, ord("b"), [ord("b")] * 2]] * 3


def test_values_of_many_types_are_written(worker: Worker, guest_cache: Path) -> None:
    (ended,) = asyncio.run(ends_of(worker, guest_cache, [(*features(), "written")]))
    assert result(ended) == [-1, {"a": [3, 4], "b": [1, 2]}, [0.5, 2.0]]


def test_what_goes_wrong_is_told(worker: Worker, guest_cache: Path) -> None:
    names = "fail panic stuck something caused exit memory clock large loop"
    runs = [(*features(), what) for what in names.split()]
    ends = asyncio.run(ends_of(worker, guest_cache, runs, cpu_seconds=0.5))
    assert [ended.status for ended in ends] == ["failed"] * 9 + ["exceeded"]
    refused, panicked, stuck, unknown, caused, left, full, clock, large, looped = (ended.error or "" for ended in ends)
    assert refused.startswith("not-found: token reference")
    assert "it was meant: 0" in panicked
    assert "features.rs:" in panicked
    assert panicked.endswith("`unreachable` instruction executed")  # functions of a stripped module have no names
    assert "has ended itself" not in panicked
    assert left.splitlines()[-1] == full.splitlines()[-1]
    assert left.endswith("the program has ended itself: by exit or abort, or as it wanted more memory than 256 MiB")
    assert "all tasks wait for each other" in stuck
    assert unknown == "unknown: something"
    assert caused == "caused: by this"
    assert "there are `inferlet::monotonic`, `unix_time`, `sleep`" in clock
    assert large.startswith("too-long: send: one call passes at most 8388608 bytes")
    assert "0.5 s of processor time" in looped


def test_what_is_too_long_for_a_log_or_an_error_is_cut(worker: Worker, guest_cache: Path) -> None:
    async def run() -> tuple[Ended, list[str]]:
        async with started(guest_cache, InProcessClient(worker), model=["demo"], warm_pool=0) as server:
            info, listener = await server.upload(*features()), Listener()
            await server.launch(info.program, ["what=loud"], listener=listener)
            async with asyncio.timeout(HANG_SECONDS):
                return await listener.ended, listener.lines

    ended, lines = asyncio.run(run())
    assert (ended.error or "").startswith("xéé")
    assert [line.partition("xéé")[0] for line in lines] == ["info: "]


SCALARS = r"""0 -0 01 1. .5 - 1e5 1E+2 1e 1e300 -1.5e-7 18446744073709551615 -9223372036854775809 null NaN
"a" "\t" "\u00e9" "\u+123" "\ud83d\udc1d" "\ud83d\u0041" "\x"
"""
"""Values of JSON, and what looks like some."""


def random_json(seed: int) -> str:
    """A text of pieces of JSON, of which most are none."""
    pick = random.Random(seed)
    scalars = [*SCALARS.split(), '"\t"']
    value = pick.choice(scalars)
    for _ in range(pick.randrange(3)):
        other = pick.choice(scalars)
        value = pick.choice(
            [f"[{value}, {other}]", f'{{"k": {other}, "k": {value}}}', f'{{"k": {value}}}', f"[{value},]"]
        )
    return value


def read_json(text: str) -> Any:
    """What Python reads, written anew, and the entry `k`; half of a character is none."""
    try:
        value = parse_json(text)
    except SchemaMismatch:
        return None
    written = json.dumps(value).replace("\\ud83dA", "\ufffdA")
    value = json.loads(written)
    return [value, value.get("k") if isinstance(value, dict) else None]


def test_json_is_read_and_written_as_python_does(worker: Worker, guest_cache: Path) -> None:
    texts = [random_json(seed) for seed in range(500)]
    (ended,) = asyncio.run(ends_of(worker, guest_cache, [(*features(), "read")], [f"texts={json.dumps(texts)}"]))
    found = [one and [json.loads(one[0]), one[1]] for one in result(ended)]
    assert dict(zip(texts, found, strict=True)) == {text: read_json(text) for text in texts}


BOUND: list[tuple[list[Any], Any]] = [
    (["bees"], [False, 7, 0, [], 0.5, "bees"]),
    (["--loud", "bees"], [True, 7, 0, [], 0.5, "bees"]),
    (["--no-loud", "topic=a=b"], [False, 7, 0, [], 0.5, "a=b"]),
    (["--loud=no", f"seed={2**64 - 1}", "numbers=1, 2", "--", "--x"], [False, 2**64 - 1, 0, [1, 2], 0.5, "--x"]),
    (["--mean-ratio", "0.25", "bees"], [False, 7, 0, [], 0.25, "bees"]),
    (["--topic"], "--topic needs a value; one that begins with -- is given by --topic=VALUE"),
    (["topic=a", "--topic", "b"], "topic is given twice"),
    ([], "missing: topic"),
    (["a", "b"], 'unexpected argument "b"'),
    ([{"topic": "a", "colour": "b"}], 'unexpected argument "colour"'),
    (["--numbers", "1", "numbers=2,3", "--numbers=[4]", "topic=a"], [False, 7, 0, [1, 2, 3, 4], 0.5, "a"]),
    (["--numbers", "1", "--numbers", "x", "topic=a"], None),
    (["seed=-1"], 'seed: expected a whole number from 0 to 18446744073709551615, not "-1"'),
    (["numbers=1,,2"], None),
    ([{"topic": "a", "seed": 2**63 + 1, "count": -3.0}], [False, 2**63 + 1, -3, [], 0.5, "a"]),
    ([{"count": 1e300}], 'count: expected a whole number from -2147483648 to 2147483647, not "1e300"'),
    ([{"seed": 1}, "seed=2"], "seed is given twice"),
    (["{"], 'the environment entry "kwargs" is not JSON: expected a key at byte 1'),
    (["[]"], 'the environment entry "kwargs" must be a JSON object'),
]


def test_arguments_are_bound_or_told(worker: Worker, guest_cache: Path) -> None:
    async def run() -> list[Any]:
        async with started(guest_cache, InProcessClient(worker), model=["demo"], warm_pool=0) as server:
            info, found = await server.upload(*features()), []
            for given, _ in BOUND:
                named = next((one for one in given if not isinstance(one, str)), None)
                raw = next((one for one in given if one in ("{", "[]")), json.dumps(named or {}))
                words = [one for one in given if isinstance(one, str) and one not in ("{", "[]")]
                listener = Listener()
                await server.launch(
                    info.program, ["what=bound", *words], environment={"kwargs": raw}, listener=listener
                )
                async with asyncio.timeout(HANG_SECONDS):
                    found.append(await listener.ended)
            return found

    ends = asyncio.run(run())
    for (given, wanted), ended in zip(BOUND, ends, strict=True):
        found = ended.error if ended.status == "failed" else result(ended)
        if wanted is None:
            assert "numbers: expected a whole number" in found
        else:
            assert (given, found) == (given, wanted)


def test_what_is_wrong_is_refused_by_name(worker: Worker, guest_cache: Path) -> None:
    found, silent = asyncio.run(ends_of(worker, guest_cache, [(*features(), what) for what in ("refused", "silent")]))
    texts = result(found)
    names = [
        "temperature is NaN",
        "top_p is inf",
        "logit_bias is -inf",
        "min_p is -1",
        "top_k is",
        "a stop string must",
    ]
    names += ["draft: drafts need"] * 2 + ["width: 0", *["count: best_of takes 1 to 2000"] * 2, "temperature is 0"]
    names += ["tokens 3 to 4294967295 cannot be dropped"]
    names += ["length: the last 0", "last: nothing goes on"]
    names += ["messages[0]: give an object", "cpu_seconds is NaN", "timeout is NaN"]
    assert all(f"invalid-argument: {name}" in text for name, text in zip(names, texts, strict=False)), texts
    assert [text.split(":")[0] for text in texts[len(names) :]] == ["too-long"] * 4 + ["quota-exceeded"]
    assert silent.status == "failed"


@WHOLE
@pytest.mark.skipif(rust_programs.compiler() is None, reason="no Rust compiler that knows wasm32-unknown-unknown")
def test_a_compiler_makes_it_anew(worker: Worker, guest_cache: Path, cargo_target: Path) -> None:
    built = rust_programs.build(FOLDER, cargo_target, rust_programs.QUICK)
    kept, anew = asyncio.run(ends_of(worker, guest_cache, [(*features(), "stop"), (built, "anew.wasm", "stop")]))
    assert result(kept) == result(anew)
