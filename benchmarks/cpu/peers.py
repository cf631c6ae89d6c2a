"""How fast is Pie against other engines on the same checkpoint and the same prompts?

All engines take turns in one run; each is idle while another runs. docs/benchmarks.md has their settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..plans import refuse_unknown
from ..support.generation import Generated
from ..support.models.large_model import LargeModel, random_prompts, served
from ..support.models.random_models import LLAMA_1B, LLAMA_TINY
from ..support.peers.interface import PeerRun
from ..support.peers.process import PeerProcess, running
from ..support.samples import median

MODULES: Mapping[str, str] = {"transformers": "transformers", "llama.cpp": "llama_cpp"}
PEERS = tuple(MODULES)
TRIAL_SEQUENCES = 4


@dataclass(frozen=True)
class Plan:
    """`tokens` tokens are generated behind prompts of `prompt` tokens. Pie and a peer take `rounds` turns each. `tree`:
    the tree to serve from, if not this one."""

    model: str
    peers: tuple[str, ...]
    concurrent: tuple[int, ...]
    prompt: int
    tokens: int
    rounds: int
    pages: int
    tree: Path | None = None

    def __post_init__(self) -> None:
        refuse_unknown("peer", self.peers, PEERS)


FULL = Plan(LLAMA_1B, PEERS, (16, 32), prompt=128, tokens=64, rounds=2, pages=2048)
QUICK = Plan(LLAMA_TINY, PEERS, (4,), prompt=32, tokens=8, rounds=1, pages=256)


@dataclass(frozen=True)
class Row:
    """Tokens per second of all sequences, generated or read: medians of the rounds, and the median of their ratios."""

    peer: str
    measure: str
    concurrent: int | None
    pie_tokens_s: float | None  # None: the peer is left out, and `note` says why
    peer_tokens_s: float | None
    ratio: float | None  # how many times as fast Pie is
    note: str = ""


async def run(plan: Plan) -> list[Row]:
    """Returns two rows for each peer and number of sequences."""
    async with served(plan.model, plan.pages, plan.tree) as model:
        return [row for name in plan.peers for row in await _against(name, model, plan)]


async def _against(name: str, model: LargeModel, plan: Plan) -> list[Row]:
    try:
        async with running(MODULES[name], model.checkpoint, model.threads) as peer:
            setting = await peer.choose(random_prompts(TRIAL_SEQUENCES, plan.prompt))
            return [row for count in plan.concurrent for row in await _compare(name, model, peer, setting, count, plan)]
    except ImportError as error:
        note = f"left out: {error.name} is not installed; docs/benchmarks.md says how to install it"
        return [Row(name, "decode", None, None, None, None, note)]


async def _compare(
    name: str, model: LargeModel, peer: PeerProcess, setting: str, count: int, plan: Plan
) -> tuple[Row, Row]:
    prompts, tokens = random_prompts(count, plan.prompt), plan.tokens
    await model.warm_up(prompts)
    turns = [
        (await model.generate(prompts, tokens), await peer.generate(setting, prompts, tokens))
        for _ in range(plan.rounds)
    ]
    read = count * plan.prompt
    decoded = [(ours.tokens_per_second, count / theirs.seconds_per_token) for ours, theirs in turns]
    filled = [(1e3 * read / ours.prompts, read / theirs.prompt_seconds) for ours, theirs in turns]
    note = f"{setting}; {_agreement(*turns[0])}"
    return (
        Row(name, "decode", count, *_medians(decoded), note),
        Row(name, f"prompts of {plan.prompt}", count, *_medians(filled)),
    )


def _medians(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    ours, theirs = (median(column) for column in zip(*pairs, strict=True))
    return round(ours, 2), round(theirs, 2), round(median([one / other for one, other in pairs]), 3)


def _agreement(ours: Generated, theirs: PeerRun) -> str:
    """Says whether both ran the same model. Later tokens may differ where two logits are almost equal in bfloat16."""
    pairs = list(zip(ours.tokens, theirs.tokens, strict=True))
    same = sum(mine[0] == other[0] for mine, other in pairs)
    return f"first token the same in {same} of {len(pairs)}"
