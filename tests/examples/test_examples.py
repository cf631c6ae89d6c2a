"""Every example runs on a model and prints what its folder says.

`run.json` tells how: {"arguments": [...], "messages": [...], "tools": true, "blobs": {...}, "model": ...}, all
optional; messages are what the client sends. With tools, the agent's world is served meanwhile, and the argument
`world=` says where. Blobs are files of the folder by name. The model is one of MODELS.
`scripts/update_examples` writes the expected outputs anew, after the demo model or an example has changed.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import os
import re
import runpy
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from inspect import signature
from pathlib import Path

import pytest

from examples.world.serving import Settings, serving
from inferlet_sdk import Args, Context, event_loop
from pie_control.authoring.new import make
from pie_control.inferlets.events import Ended
from pie_control.testing.in_process import InProcessClient
from pie_inference.config import WorkerConfig
from pie_inference.protocol import Forward, RunWave, WaveDone
from pie_inference.serving.worker import Worker
from testing.vision_checkpoint import make_vision_checkpoint
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.native_host import install
from tests.helpers.servers import Listener, launch, started
from tests.helpers.tree import DEMO_MODEL, EXAMPLES, ROOT

FOLDERS = sorted(path for path in EXAMPLES.iterdir() if path.is_dir())
IN_RUST = sorted(EXAMPLES.glob("*/rust/*.wasm"))
README = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
UPDATE = "PIE_UPDATE_EXAMPLES" in os.environ


MODELS: dict[str, Callable[[Path], Path]] = {
    "demo": lambda _: DEMO_MODEL,
    "demo-reasoner": lambda _: DEMO_MODEL.with_name("demo_reasoner"),
    "random vision": make_vision_checkpoint,
}


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Worker]:
    """Models in float32, so that greedy choices do not depend on the machine's bfloat16."""

    @functools.cache
    def worker(name: str) -> Worker:
        folder = MODELS[name](tmp_path_factory.mktemp("model"))
        return Worker(WorkerConfig(folder, "demo", dtype="float32", device="cpu", pages=512, embeds=4096, threads=1))

    return worker


async def run_example(
    folder: Path, workers: Callable[[str], Worker], cache_dir: Path, program: Path | None = None
) -> tuple[Ended, str]:
    """`program`: another one than that in Python."""
    options = json.loads((folder / "run.json").read_text())
    arguments = list(options.get("arguments", ()))
    settings: dict[str, object] = {"model": ["demo"], "warm_pool": 0}
    async with serving(Settings(slow=0, failures=0)) if options.get("tools") else nullcontext() as world:
        if world is not None:
            arguments.append(f"world={world.url}")
            settings["http_allow"] = world.place
        worker, files = workers(options.get("model", "demo")), options.get("blobs", {})
        messages = options.get("messages", ())
        return await run_with(folder, worker, cache_dir, arguments, messages, files, settings, program)


async def run_with(
    folder: Path,
    worker: Worker,
    cache_dir: Path,
    arguments: Sequence[str],
    messages: Sequence[str],
    files: Mapping[str, str],
    settings: Mapping[str, object],
    program: Path | None = None,
) -> tuple[Ended, str]:
    program = program or folder / f"{folder.name}.py"
    async with started(cache_dir, InProcessClient(worker), **settings) as server:
        info = await server.upload(program.read_bytes(), program.name)
        listener = Listener()
        blobs = {name: await server.upload_blob((folder / file).read_bytes()) for name, file in files.items()}
        inferlet = await server.launch(info.program, arguments, blobs=blobs, listener=listener)
        for message in messages:
            inferlet.send(message)
        async with asyncio.timeout(HANG_SECONDS):
            return await listener.ended, "".join(listener.messages)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_example_prints_what_its_folder_says(
    folder: Path, workers: Callable[[str], Worker], guest_cache: Path
) -> None:
    ended, text = asyncio.run(run_example(folder, workers, guest_cache))
    assert (ended.status, ended.error) == ("finished", None)
    expected = folder / "expected_output.txt"
    if UPDATE:
        expected.write_text(text)
    assert text == expected.read_text(), "run scripts/update_examples if the change is meant"


@pytest.mark.parametrize("program", IN_RUST, ids=lambda path: path.stem)
def test_an_example_in_rust_prints_what_that_in_python_prints(
    program: Path, workers: Callable[[str], Worker], guest_cache: Path
) -> None:
    folder = program.parent.parent
    ended, text = asyncio.run(run_example(folder, workers, guest_cache, program))
    assert (ended.status, ended.error) == ("finished", None)
    assert text == (folder / "expected_output.txt").read_text()


@pytest.mark.parametrize("code", README, ids=range(len(README)))
def test_a_program_of_the_readme_writes_words(
    code: str, workers: Callable[[str], Worker], guest_cache: Path, tmp_path: Path
) -> None:
    program, settings = tmp_path / "program.py", {"model": ["demo"], "warm_pool": 0}
    program.write_text(code)
    ended, text = asyncio.run(run_with(tmp_path, workers("demo"), guest_cache, (), (), {}, settings, program))
    assert (ended.status, ended.error) == ("finished", None)
    assert len(re.findall("[a-z]{3,}", text or str(ended.result))) > 2


WRONG: Sequence[tuple[str, Mapping[str, object], str]] = [
    ("classifier_free_guidance", {"scale": 1e308}, "scale: give a number from -1000 to 1000"),
    ("codeact", {"question": "kite and bell " * 700}, " tokens, and demo takes at most 2048: fill less"),
    ("contrastive_decoding", {"alpha": 2}, "give an alpha from 0 to 1, a beta from -1000 to 1000, and a temperature"),
    ("contrastive_decoding", {"beta": 1e308}, "give an alpha from 0 to 1, a beta from -1000 to 1000"),
    ("debate", {"models": ["demo"]}, "give two models, which may be the same, and one round or more"),
    ("demo", {"branches": 0}, "branches: give 1 or more"),
    ("early_tools", {"keys": ", ".join(map(str, range(60)))}, "has more than 100 tokens: ask for fewer keys"),
    ("entropy_retrieval", {"name": "Nobody"}, "/pages/Nobody: there is no page 'Nobody': search for one"),
    ("graph_of_thought", {"digits": "one"}, "digits: give digits alone, such as 8371, not 'one'"),
    ("graph_of_thought", {"digits": "٣٤"}, "digits: give digits alone, such as 8371, not '٣٤'"),
    ("heavy_hitters", {"budget": 10}, "give a prompt, and a budget of which `recent` is all or a part"),
    ("hierarchical_attention", {"sections": []}, "give a section or more, each a text and its summary"),
    ("hierarchical_attention", {"sections": [["a", "b " * 4000]]}, "its summary, 2048 tokens at most"),
    ("jacobi", {"max_tokens": -1}, "give a prompt, and a max_tokens and a length of 0 or more"),
    ("jacobi", {"max_tokens": 2000}, "the prompt, max_tokens and length are more than the 2048 tokens of demo"),
    ("latent_thoughts", {"thoughts": 2000}, "the question, thoughts and max_tokens are more than the 2048"),
    ("latent_thoughts", {"max_tokens": -100}, "give thoughts and max_tokens of 0 or more"),
    ("mcts", {"numbers": "a"}, "numbers: give two or more, such as 4,7,8,8, not 'a'"),
    ("mcts", {"numbers": "1" * 5000}, "give numbers in 100 characters at most, and rounds and tries of 1 or more"),
    ("prefix_tree", {"parts": []}, "parts: give levels of beginnings, such as "),
    ("raw_api", {"max_tokens": -100}, "give a max_tokens of 0 or more"),
    ("reflexion", {"rounds": 0}, "give one round or more"),
    ("retrieval", {"keep": -1}, "keep: give 0 or more"),
    ("self_consistency", {"question": "a " * 4000}, "tokens, and demo takes at most 2048: fill less"),
    ("skeleton_of_thought", {"points": 6}, "points: "),
    ("swarm", {"parts": [1, 2, 3]}, "3 members cannot meet in pairs: give 2, 4, 8, ... parts"),
    ("swarm", {"parts": [-1, 2]}, "parts: give numbers of 0 or more, such as 3,11,7,12"),
    ("text_completion", {"prompt": "a", "temperature": -1}, "temperature is -1.0; it must lie between 0.0 and"),
    ("tree_of_thought", {"numbers": "1"}, "numbers: give two or more, such as 4,7,8,8, not '1'"),
    ("tree_of_thought", {"width": 0}, "and tries, a width and rounds of 1 or more"),
]
WORDS = ["".join(letters) for letters in itertools.product("bcdfgk", "aeiou", "lmnprstvwz")]
UNUSUAL: dict[str, tuple[Mapping[str, object], object]] = {
    "codeact": ({"question": " ".join(WORDS), "functions": "price"}, "no answer after 5 programs"),
    "contrastive_decoding": ({"beta": 50.0, "alpha": 0.0, "temperature": 1e-320, "tokens": 3}, None),
    "early_tools": ({"keys": "<|end|>"}, None),
    "jacobi": ({"most": 10**30, "max_tokens": 2}, {"forwards": 3, "tokens": [591, 730]}),
    "modular_caching": ({"modules": ["", "a"], "tokens": 0}, None),
    "prefix_sharing": ({"tokens": 0}, None),
    "raw_api": ({"question": "word " * 2030}, None),
    "react": ({"grounded": True}, None),
    "recursion_of_thought": ({"letter": "?"}, ""),
    "reflexion": ({"question": "What is 52 - 7?"}, {"answer": "45", "tokens": 37}),
}
"""Arguments that a program takes, and its result; None: some result."""


def test_arguments_that_are_wrong_or_unusual_are_answered(workers: Callable[[str], Worker], guest_cache: Path) -> None:
    async def ask() -> list[Ended]:
        async with (
            serving(Settings(slow=0, failures=0)) as world,
            started(guest_cache, InProcessClient(workers("demo")), model=["demo"], http_allow=world.place) as server,
        ):

            async def end(name: str, given: Mapping[str, object]) -> Ended:
                asks = name in ("codeact", "early_tools", "entropy_retrieval", "react")
                given = {**given, "world": world.url} if asks else given
                inferlet, listener = await launch(server, (EXAMPLES / name / f"{name}.py").read_text("utf-8"), given)
                for message in ('"\\ <|tool|> ' + "kite " * 100, "") if name == "react" else ():
                    inferlet.send(message)
                return await listener.ended

            async with asyncio.timeout(HANG_SECONDS):
                unusual = ((name, given) for name, (given, _) in UNUSUAL.items())
                cases = [*((name, given) for name, given, _ in WRONG), *unusual]
                return await asyncio.gather(*(end(*case) for case in cases))

    ends = asyncio.run(ask())
    for (name, _, message), ended in zip(WRONG, ends, strict=False):
        assert message in (ended.error or ""), (name, ended)
    for (name, (_, result)), ended in zip(UNUSUAL.items(), ends[len(WRONG) :], strict=True):
        assert ended.status == "finished", (name, ended)
        assert result in (None, json.loads(ended.result or "null")), (name, ended)


def test_the_demo_saves_as_many_tokens_as_it_says(
    workers: Callable[[str], Worker], guest_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, settings = workers("demo"), {"model": ["demo"], "warm_pool": 0}
    inputs: list[int] = []

    def watched(wave: RunWave) -> WaveDone:
        inputs.extend(batch.q_embeds.size for batch in wave.batches if isinstance(batch, Forward))
        return run(wave)

    run = worker.run
    monkeypatch.setattr(worker, "run", watched)

    def tokens(branches: int) -> tuple[int, str]:
        before, arguments = sum(inputs), [f"branches={branches}"]
        _, text = asyncio.run(run_with(EXAMPLES / "demo", worker, guest_cache, arguments, (), {}, settings))
        return sum(inputs) - before, text

    (one, _), (five, text) = tokens(1), tokens(5)
    saved = re.search(r"prompt computed once: \d+ pages, (\d+) tokens saved", text)
    assert saved is not None
    most_written = 4 * 61  # by the four further branches
    assert 0 < five - one <= most_written < int(saved[1])


def test_a_new_program_says_what_hello_says(
    tmp_path: Path, workers: Callable[[str], Worker], guest_cache: Path
) -> None:
    (tmp_path / "main").mkdir()
    make("story", tmp_path).joinpath("main.py").rename(tmp_path / "main" / "main.py")
    settings = {"model": ["demo"], "warm_pool": 0}
    ended, text = asyncio.run(run_with(tmp_path / "main", workers("demo"), guest_cache, (), (), {}, settings))
    assert (ended.status, ended.error) == ("finished", None)
    assert text == (EXAMPLES / "hello" / "expected_output.txt").read_text()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_example_is_complete(folder: Path) -> None:
    readme = (folder / "README.md").read_text()
    plain = readme.replace("run -i", "run").replace("run --http-allow 127.0.0.1:8099", "run")
    assert f"    pie run {folder.name}" in plain
    assert "expected_output.txt" in readme
    assert set(json.loads((folder / "run.json").read_text())) <= {"arguments", "messages", "tools", "blobs", "model"}


def test_the_raw_api_gives_what_the_context_gives() -> None:
    outputs = {(EXAMPLES / name / "expected_output.txt").read_text() for name in ("hello", "raw_api")}
    assert len(outputs) == 1


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("jacobi", {}),
        ("latent_thoughts", {"thoughts": 0}),
        ("heavy_hitters", {"budget": 500}),
        ("raw_api", {}),
    ],
)
def test_prompts_that_are_longer_than_all_embeds_run_in_parts(name: str, options: dict[str, int]) -> None:
    host = install(max_context=2000, num_embeds=100)
    main = runpy.run_path(str(EXAMPLES / name / f"{name}.py"))["main"]
    main.__globals__["PART"] = 64
    asked = "Once upon a time there was a bee. " * 9
    with Context() as ctx:
        prompt = ctx.fill(asked) if "prompt" in signature(main).parameters else ctx.fill_chat("user", asked)
        text = event_loop.run(prompt.generate_until(max_tokens=5))
    event_loop.run(main(Args(), asked, max_tokens=5, **options))
    assert "".join(host.sent).strip() == text
