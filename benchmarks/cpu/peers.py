"""How fast is Pie against other engines on the same checkpoint and the same prompts?

All engines take turns in one run; each is idle while another runs. docs/benchmarks.md has their settings.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..plans import refuse_unknown
from ..support.generation import Generated
from ..support.models.large_model import WARM_UP_TOKENS, LargeModel, ServedModel, served
from ..support.models.random_models import LLAMA_1B, LLAMA_TINY
from ..support.peers.gguf_file import HEAD_TYPES, TYPES
from ..support.peers.interface import PeerRun
from ..support.peers.process import PeerProcess, running
from ..support.samples import median

MODULES: Mapping[str, str] = {"transformers": "transformers", "llama.cpp": "llama_cpp"}
PEERS = tuple(MODULES)
QUANTIZATIONS: Mapping[str, str] = {"bf16": "none", "int8": "int8", "int4": "int4"}
"""Pie's `--quantization` for each form of the weights."""
FORMS = tuple(QUANTIZATIONS)
FORMS_OF: Mapping[str, Sequence[str]] = {"transformers": ("bf16",), "llama.cpp": FORMS}
TRIAL_PROMPT = 16
TRIAL_TOKENS = 8


@dataclass(frozen=True, kw_only=True)
class Plan(ServedModel):
    """`tokens` tokens are generated behind prompts of `prompt` tokens; one of `long_prompt` tokens is read alone. Pie
    and a peer take `rounds` turns each. `forms` are those of the weights: bf16, int8, int4. The other options are as in
    `decode`; `max_isa` holds for peers that compute with torch."""

    peers: tuple[str, ...]
    forms: tuple[str, ...]
    concurrent: tuple[int, ...]
    prompt: int
    long_prompt: int
    tokens: int
    rounds: int
    compiles: bool  # whether peers may compile the model, which takes minutes

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unknown("peer", self.peers, PEERS)
        refuse_unknown("form", self.forms, FORMS)
        if not any(self.peers_of(form) for form in self.forms):
            raise ValueError(f"{', '.join(self.peers)} is not compared in {', '.join(self.forms)}")

    def peers_of(self, form: str) -> Sequence[str]:
        """The peers that are compared in a form of the weights."""
        return [name for name in self.peers if form in FORMS_OF[name]]


FULL = Plan(
    model=LLAMA_1B,
    pages=2048,
    peers=PEERS,
    forms=FORMS,
    concurrent=(1, 16, 32),
    prompt=128,
    long_prompt=2048,
    tokens=64,
    rounds=2,
    compiles=True,
)
QUICK = Plan(
    model=LLAMA_TINY,
    pages=256,
    peers=PEERS,
    forms=FORMS,
    concurrent=(4,),
    prompt=32,
    long_prompt=256,
    tokens=8,
    rounds=1,
    compiles=False,
)


@dataclass(frozen=True)
class Row:
    """Tokens per second of all sequences, generated or read: medians of the rounds, and the median of their ratios."""

    peer: str
    form: str
    measure: str
    concurrent: int | None
    pie_tokens_s: float | None  # None: the peer is left out, and `note` says why
    peer_tokens_s: float | None
    ratio: float | None  # how many times as fast Pie is
    note: str = ""


async def run(plan: Plan) -> list[Row]:
    """Returns for each form and peer two rows for each number of sequences, and one for the long prompt."""
    rows: list[Row] = []
    for form in filter(plan.peers_of, plan.forms):
        async with served(plan, QUANTIZATIONS[form]) as model:
            for name in plan.peers_of(form):
                rows += await _against(name, form, model, plan)
    return rows


async def _against(name: str, form: str, model: LargeModel, plan: Plan) -> list[Row]:
    start = functools.partial(running, form=form, threads=model.threads, compiles=plan.compiles, max_isa=plan.max_isa)
    try:
        async with start(MODULES[name], model.checkpoint) as peer:
            match = _Match(name, form, model, peer, plan)
            rows = [row for count in plan.concurrent for row in await match.decode(count)]
            rows.append(await match.long_prompt())
            note = f"Pie: {await model.features()}, --max-isa {plan.max_isa}; {name}: {await peer.features()}"
            return [replace(row, note="; ".join((row.note, *_form_notes(name, form), note))) for row in rows]
    except ImportError as error:
        note = f"left out: {error.name} is not installed; docs/benchmarks.md says how to install it"
        return [Row(name, form, "decode", None, None, None, None, note)]


def _form_notes(name: str, form: str) -> Iterator[str]:
    if name == "llama.cpp":
        yield f"{TYPES[form]}, output head {HEAD_TYPES[form]}"


@dataclass(frozen=True)
class _Match:
    """One peer and Pie, which take turns on the same prompts."""

    name: str
    form: str
    model: LargeModel
    peer: PeerProcess
    plan: Plan

    async def decode(self, count: int) -> tuple[Row, Row]:
        """The rows of `count` sequences, with the setting that decodes fastest."""
        length, tokens = self.plan.prompt, self.plan.tokens
        trial = await self.peer.try_settings(
            self.model.new_prompts(count, min(length, TRIAL_PROMPT)), min(tokens, TRIAL_TOKENS), length + tokens
        )
        setting = min(trial, key=lambda run: run.seconds_per_token).setting
        turns = await self._take_turns(setting, count, length, tokens, tokens)
        decoded = [(ours.tokens_per_second, count / theirs.seconds_per_token) for ours, theirs in turns]
        return (
            self._row("decode", count, decoded, f"{setting}; {_agreement(*turns[0])}"),
            self._row(f"prompts of {length}", count, _filled(turns, count * length), setting),
        )

    async def long_prompt(self) -> Row:
        """The row of one long prompt, with the setting that reads it fastest."""
        length = self.plan.long_prompt
        trial = await self.peer.try_settings(self.model.new_prompts(1, length), 1, length + 1)
        setting = min(trial, key=lambda run: run.prompt_seconds).setting
        turns = await self._take_turns(setting, 1, length, WARM_UP_TOKENS, 1)
        return self._row(f"prompt of {length}", 1, _filled(turns, length), setting)

    async def _take_turns(
        self, setting: str, count: int, length: int, our_tokens: int, their_tokens: int
    ) -> list[tuple[Generated, PeerRun]]:
        await self.model.warm_up(count)
        rounds = [self.model.new_prompts(count, length) for _ in range(self.plan.rounds)]
        return [
            (
                await self.model.generate(prompts, our_tokens),
                await self.peer.generate(setting, prompts, their_tokens, length + their_tokens),
            )
            for prompts in rounds
        ]

    def _row(self, measure: str, count: int, pairs: Sequence[tuple[float, float]], note: str) -> Row:
        return Row(self.name, self.form, measure, count, *_medians(pairs), note)


def _filled(turns: Sequence[tuple[Generated, PeerRun]], tokens: int) -> list[tuple[float, float]]:
    """Tokens of prompts that both sides read in a second."""
    return [(1e3 * tokens / ours.prompts, tokens / theirs.prompt_seconds) for ours, theirs in turns]


def _medians(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    ours, theirs = (median(column) for column in zip(*pairs, strict=True))
    return round(ours, 2), round(theirs, 2), round(median([one / other for one, other in pairs]), 3)


def _agreement(ours: Generated, theirs: PeerRun) -> str:
    """Says whether both ran the same model. Later tokens may differ where two logits are almost equal."""
    pairs = list(zip(ours.tokens, theirs.tokens, strict=True))
    same = sum(mine[0] == other[0] for mine, other in pairs)
    return f"first token the same in {same} of {len(pairs)}"
