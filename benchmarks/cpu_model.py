"""A model of a billion parameters on the CPU: against what the machine can do, and against other engines.

`random-1b` has the shape of Llama-3.2-1B, random weights in bfloat16. Everything is measured in one run and reported
as ratios: the machine's own rates first, then the whole system (inferlets that stream to a client) against the bound
that follows from them, then peers, which take turns with Pie on the same prompts, each idle while the other runs.

`--baseline FOLDER` names a checkout of another commit (`git worktree add FOLDER COMMIT`): its server runs the demo
model in turns with this one's. Client and inferlet are ours in both, so the commits must share the HTTP interface.

`--parts` picks parts; the machine's rates are always measured, for the bounds need them.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pie_control.client import Client
from pie_control.config import ServerConfig
from pie_inference.device.threads import default_threads

from . import rooflines
from .checkpoint import LLAMA_1B, TINY, random_model
from .costs import BYTES, LlamaCosts, llama_costs
from .generation import Generated, run_inferlets
from .guests import source
from .peers.interface import PeerRun, Prompts
from .peers.process import PeerProcess, in_own_process, running
from .rooflines import Rates
from .samples import median
from .server import serving

MACHINE, DECODE, PREFILL, DEMO = "machine", "decode", "prefill", "demo"
PEERS = {"transformers": "transformers", "llama.cpp": "llama_cpp"}
PARTS = (DECODE, PREFILL, *PEERS, DEMO)
RATE_REPEATS = 10  # the best of them counts
WARM_UP_TOKENS = 4
WARM_UP_PROMPT = 16
TRIAL_SEQUENCES = 4
DEMO_TURNS = 4
"""For each round: a turn of the demo model is short, so the machine's whims weigh more."""
SEED = 7


@dataclass(frozen=True)
class Plan:
    """Prompts have `prompt` tokens, `tokens` are generated behind each, `single_tokens` where one is alone."""

    model: str
    concurrent: tuple[int, ...]
    prompt: int
    tokens: int
    single_tokens: int
    long_prompt: int
    demo_concurrent: int
    demo_prompt: int
    rounds: int
    read_bytes: int
    pages: int
    parts: tuple[str, ...] = PARTS
    gemm_size: int = rooflines.GEMM_SIZE
    baseline: Path | None = None


FULL = Plan(
    model=LLAMA_1B,
    concurrent=(1, 16, 32),
    prompt=128,
    tokens=64,
    single_tokens=128,
    long_prompt=2048,
    demo_concurrent=32,
    demo_prompt=64,
    rounds=2,
    read_bytes=1 << 30,
    pages=2048,
)
QUICK = Plan(
    model=TINY,
    concurrent=(1, 4),
    prompt=32,
    tokens=8,
    single_tokens=8,
    long_prompt=256,
    demo_concurrent=4,
    demo_prompt=32,
    rounds=1,
    read_bytes=1 << 26,
    pages=256,
)


@dataclass(frozen=True)
class Row:
    """One figure of ours, and what it is held against. `ratio`: how many times as fast ours is."""

    part: str
    measure: str
    unit: str
    concurrent: int | None
    ours: float | None
    against: str | None
    theirs: float | None
    ratio: float | None
    note: str = ""


@dataclass(frozen=True)
class _Setup:
    """What the parts on the large model share."""

    plan: Plan
    client: Client
    program: str
    checkpoint: Path
    costs: LlamaCosts
    rates: Rates

    def prompts(self, count: int, length: int) -> list[list[int]]:
        """The same for everyone."""
        return _random_tokens(count, length)

    async def warm_up(self, prompts: Prompts) -> None:
        """The same number of sequences, without what takes long."""
        await self.generate([prompt[:WARM_UP_PROMPT] for prompt in prompts], WARM_UP_TOKENS)

    async def rates_now(self) -> Rates:
        """The machine's rates at this moment; Pie is idle meanwhile."""
        return await _rates(self.plan, self.rates.threads)

    async def generate(self, prompts: Prompts, tokens: int) -> Generated:
        return await run_inferlets(self.client, self.program, prompts, tokens, together=True)


async def run(plan: Plan) -> list[Row]:
    """The machine's rows, then those of each part."""
    if unknown := set(plan.parts) - set(PARTS):
        raise SystemExit(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    checkpoint = random_model(plan.model)
    costs = llama_costs(checkpoint)
    threads = default_threads(BYTES * (costs.layer_weights + costs.head_weights))
    rates = await _rates(plan, threads)
    rows = _machine_rows(rates, plan.gemm_size)
    if set(plan.parts) - {DEMO}:
        rows += await _large_model(plan, checkpoint, costs, rates)
    if DEMO in plan.parts:
        rows += await _demo(plan)
    return rows


async def _rates(plan: Plan, threads: int) -> Rates:
    rates: Rates = await in_own_process(rooflines.measure, threads, plan.read_bytes, RATE_REPEATS, plan.gemm_size)
    return rates


def _machine_rows(rates: Rates, size: int) -> list[Row]:
    note = f"{rates.threads} threads"
    return [
        Row(MACHINE, "memory read", "GB/s", None, _rounded(rates.read / 1e9), None, None, None, note),
        Row(MACHINE, f"bf16 GEMM {size}^3", "GFLOP/s", None, _rounded(rates.gemm / 1e9), None, None, None, note),
    ]


async def _large_model(plan: Plan, checkpoint: Path, costs: LlamaCosts, rates: Rates) -> list[Row]:
    settings: dict[str, Any] = {"model": f"{plan.model}={checkpoint}", "dtype": "bfloat16"}
    rows = []
    async with _client(**settings, pages=plan.pages, threads=rates.threads) as (client, program):
        setup = _Setup(plan, client, program, checkpoint, costs, rates)
        if DECODE in plan.parts:
            rows += [row for count in plan.concurrent for row in await _decode(setup, count)]
        if PREFILL in plan.parts:
            rows += await _prefill(setup)
        for peer in (name for name in PEERS if name in plan.parts):
            rows += await _against_peer(setup, peer)
    return rows


@contextlib.asynccontextmanager
async def _client(**settings: Any) -> AsyncIterator[tuple[Client, str]]:
    """A client of a server of its own, and the program that it runs."""
    async with serving(**settings) as server, Client(server.url) as client:
        yield client, await client.upload(source("generate"), "generate")


async def _decode(setup: _Setup, count: int) -> list[Row]:
    """Against the bound, from the rates beside each run: those of a virtual machine change; and the worker's part."""
    tokens = setup.plan.tokens if count > 1 else setup.plan.single_tokens
    prompts = setup.prompts(count, setup.plan.prompt)
    await setup.warm_up(prompts)
    rounds = setup.plan.rounds if count == 1 else 1  # prompts take most of the time; peers are measured in rounds
    runs = [(await setup.generate(prompts, tokens), await setup.rates_now()) for _ in range(rounds)]
    context = setup.plan.prompt + tokens / 2
    costs = (setup.costs.step_bytes(count, context), setup.costs.step_operations(count, context))
    bounds = [1e3 * rates.seconds(*costs) for _, rates in runs]
    batch = f"{median([run.waves.batch for run, _ in runs]):.1f} in a wave"

    def row(measure: str, time: Callable[[Generated], float]) -> Row:
        ours = [time(run) for run, _ in runs]
        share = median([bound / one for bound, one in zip(bounds, ours, strict=True)])
        return Row(
            DECODE,
            measure,
            "ms",
            count,
            _rounded(median(ours)),
            "bound",
            _rounded(median(bounds)),
            _rounded(share),
            batch,
        )

    return [
        row("token, end to end", lambda run: run.per_token),
        row("wave, in the worker", lambda run: run.waves.worker),
    ]


async def _prefill(setup: _Setup) -> list[Row]:
    """One long prompt: operations per second against the rate of a large product."""
    prompts = setup.prompts(1, setup.plan.long_prompt)
    await setup.warm_up(prompts)
    runs = [await setup.generate(prompts, WARM_UP_TOKENS) for _ in range(setup.plan.rounds)]
    operations = setup.costs.prefill_operations(setup.plan.long_prompt)
    gemm = setup.rates.gemm / 1e9

    def row(where: str, time: Callable[[Generated], float]) -> Row:
        rate = operations / median([time(run) for run in runs]) / 1e6
        measure = f"{setup.plan.long_prompt} tokens, {where}"
        return Row(PREFILL, measure, "GFLOP/s", 1, _rounded(rate), "GEMM", _rounded(gemm), _rounded(rate / gemm))

    return [
        row("end to end", lambda run: run.prompts),
        row("in the worker", lambda run: run.prompt_waves.worker_total),
    ]


async def _against_peer(setup: _Setup, name: str) -> list[Row]:
    try:
        async with running(PEERS[name], setup.checkpoint, setup.rates.threads) as peer:
            counts = [count for count in setup.plan.concurrent if count > 1]
            setting = await peer.choose(setup.prompts(TRIAL_SEQUENCES, setup.plan.prompt))
            return [row for count in counts for row in await _compare(setup, name, peer, setting, count)]
    except ImportError as error:
        note = f"left out, not installed ({error.name}); docs/benchmarks.md says how"
        return [Row(name, "decode", "tokens/s", None, None, name, None, None, note)]


async def _compare(setup: _Setup, name: str, peer: PeerProcess, setting: str, count: int) -> list[Row]:
    """Turns of Pie and the peer on the same prompts."""
    prompts, tokens = setup.prompts(count, setup.plan.prompt), setup.plan.tokens
    await setup.warm_up(prompts)
    turns = [
        (await setup.generate(prompts, tokens), await peer.generate(setting, prompts, tokens))
        for _ in range(setup.plan.rounds)
    ]
    note = f"{setting}; {_agreement(*turns[0])}"
    read = count * setup.plan.prompt
    return [
        _turns_row(name, "decode", count, [(o.tokens_per_second, count / t.seconds_per_token) for o, t in turns], note),
        _turns_row(
            name,
            f"prompts of {setup.plan.prompt}",
            count,
            [(1e3 * read / o.prompts, read / t.prompt_seconds) for o, t in turns],
        ),
    ]


def _turns_row(peer: str, measure: str, count: int, pairs: Sequence[tuple[float, float]], note: str = "") -> Row:
    """Medians of tokens per second of ours and theirs, and of their ratios."""
    ours, theirs = (median(column) for column in zip(*pairs, strict=True))
    ratio = _rounded(median([one / other for one, other in pairs]))
    return Row(peer, measure, "tokens/s", count, _rounded(ours), peer, _rounded(theirs), ratio, note)


def _agreement(ours: Generated, theirs: PeerRun) -> str:
    """Whether both ran the same model: later tokens part where two logits are almost equal, in bfloat16."""
    pairs = list(zip(ours.tokens, theirs.tokens, strict=True))
    same = sum(mine[0] == other[0] for mine, other in pairs)
    return f"first token the same in {same} of {len(pairs)}"


async def _demo(plan: Plan) -> list[Row]:
    """The worker's time for a wave of the demo model, against another commit's if there is one."""
    model = Path(ServerConfig().resolved().models[0].path)
    settings: dict[str, Any] = {"model": f"{DEMO}={model}"}
    async with contextlib.AsyncExitStack() as stack:
        sides = [await stack.enter_async_context(_client(**settings))]
        if plan.baseline is not None:
            sides.append(await stack.enter_async_context(_client(root=plan.baseline.resolve(), **settings)))
        turns = [await _demo_turn(sides, plan) for _ in range(DEMO_TURNS * plan.rounds + 1)][1:]
    return [
        _demo_row("wave, in the worker", plan, [[run.waves.worker for run in turn] for turn in turns]),
        _demo_row("token, end to end", plan, [[run.per_token for run in turn] for turn in turns]),
    ]


async def _demo_turn(sides: Sequence[tuple[Client, str]], plan: Plan) -> list[Generated]:
    prompts = _random_tokens(plan.demo_concurrent, plan.demo_prompt)
    return [await run_inferlets(client, program, prompts, plan.tokens, together=True) for client, program in sides]


def _demo_row(measure: str, plan: Plan, turns: Sequence[Sequence[float]]) -> Row:
    """Of turns in milliseconds: ours, and the baseline's if it took part."""
    ours = _rounded(median([turn[0] for turn in turns]))
    if plan.baseline is None:
        return Row(DEMO, measure, "ms", plan.demo_concurrent, ours, None, None, None)
    theirs = _rounded(median([turn[1] for turn in turns]))
    ratio = _rounded(median([turn[1] / turn[0] for turn in turns]))
    return Row(DEMO, measure, "ms", plan.demo_concurrent, ours, "baseline", theirs, ratio)


def _rounded(value: float) -> float:
    """To four digits."""
    return float(f"{value:.4g}")


def _random_tokens(count: int, length: int) -> list[list[int]]:
    """Printable bytes, which every model of ours has as tokens."""
    tokens: list[list[int]] = np.random.default_rng(SEED).integers(32, 127, (count, length)).tolist()
    return tokens
