"""The configuration of a model without a family of ours, and the proof that transformers' code serves it.

Imports no transformers: a kept proof has everything that a plan needs.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import torch

from ...device.ranks import Ranks, SingleRank, share
from ...errors import CheckpointError, ConfigError
from ...options.cache_files import NotPrivate, private_folder, read_own_file, write_atomically
from ...recurrence.batches import Cut
from ...recurrence.states import StateShape
from ..config import ModelConfig
from ..rope_json import Context
from .survey import Proof, Survey


@dataclass(frozen=True)
class BorrowedConfig(ModelConfig):
    """What pages, kernels and the control layer know of such a model."""

    raw: Mapping[str, Any]  # config.json
    survey: Survey
    difference: float  # as in `Proof`

    @property
    def state(self) -> StateShape | None:
        return self.state_of(SingleRank())

    def state_of(self, ranks: Ranks) -> StateShape | None:
        numbers = self.survey.state_numbers(ranks.size)
        return StateShape(1, numbers) if numbers else None

    @property
    def cut(self) -> Cut:
        return "texts" if self.survey.state else "none"

    def heads_of(self, ranks: Ranks) -> tuple[int, int]:
        if not self.survey.attentions:  # each rank has pages all the same, which nothing reads
            return self.num_heads, self.num_kv_heads
        for heads in self.survey.attentions:
            share(ranks, heads.num_kv_heads, "key-value heads")
        return super().heads_of(ranks)

    @property
    def fixed_positions(self) -> str:
        return super().fixed_positions or self.survey.fixed_positions

    @property
    def by_token(self) -> bool:
        return self.survey.by_token

    @property
    def code(self) -> str:
        exact = f"its small form over pages is within {self.difference:.0e} of its own forward"
        no_graphs = f"; no CUDA graphs: {self.survey.no_graphs}" if self.survey.no_graphs else ""
        one_rank = f"; one rank only: {self.survey.one_rank}" if self.survey.one_rank else ""
        whole = any(part.shared is None for part in self.survey.state) and not one_rank
        state = "; each rank keeps whole states" if whole else ""
        return f"transformers {version()}; {exact}{no_graphs}{one_rank}{state}"


def version() -> str:
    """The version of transformers that is installed; "" if there is none."""
    try:
        return importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        return ""


def read_borrowed(raw: Mapping[str, Any], architecture: str, cache_dir: Path | None) -> BorrowedConfig:
    """Finds out how transformers' code serves a config.json, and proves that it does; what is in `cache_dir` is not
    done again. Raises CheckpointError with the reason for a model that it cannot serve, ConfigError if
    others can write into the folder."""
    if not version():
        raise CheckpointError(f"config.json: {architecture} is served by transformers, which is not installed here")
    file = _file(raw, architecture, cache_dir)
    proof = _kept(file) or _prove(raw, architecture)
    if file is not None:
        write_atomically(file, msgspec.json.encode(proof))
    if proof.survey is None or proof.refusal:
        raise CheckpointError(proof.refusal)
    return borrowed_config(raw, architecture, proof.survey, proof.difference)


def borrowed_config(raw: Mapping[str, Any], architecture: str, survey: Survey, difference: float) -> BorrowedConfig:
    """The configuration that a survey gives."""
    return BorrowedConfig(
        architecture=architecture,
        vocab_size=survey.vocab_size,
        hidden_size=survey.hidden_size,
        intermediate_size=survey.hidden_size,
        num_layers=max(1, len(survey.attentions)),
        num_heads=survey.num_heads,
        num_kv_heads=survey.num_kv_heads,
        head_dim=survey.head_dim,
        norm_eps=1e-6,
        tie_embeddings=False,
        attention_bias=False,
        activation="silu",
        context=Context(survey.context, survey.longest_context),
        rope=(),
        attention=survey.specs,
        raw=raw,
        survey=survey,
        difference=difference,
    )


def _prove(raw: Mapping[str, Any], architecture: str) -> Proof:
    from .proving.proof import prove

    try:
        return prove(raw, architecture)
    except CheckpointError as error:
        return Proof(str(error), None, 0.0)


@cache
def _own_code() -> str:
    """Tells versions of this package apart."""
    folder = Path(__file__).parent
    sources = b"".join(path.read_bytes() for path in sorted(folder.rglob("*.py")))
    return hashlib.sha256(sources).hexdigest()


def _file(raw: Mapping[str, Any], architecture: str, cache_dir: Path | None) -> Path | None:
    """Where the proof is kept; None: nowhere."""
    if cache_dir is None:
        return None
    try:
        folder = private_folder(cache_dir / "proofs")
    except NotPrivate as error:
        raise ConfigError(str(error)) from None
    known = json.dumps([raw, architecture, version(), torch.__version__, _own_code()], sort_keys=True)
    return folder / f"{hashlib.sha256(known.encode()).hexdigest()}.json"


def _kept(file: Path | None) -> Proof | None:
    try:
        return None if file is None else msgspec.json.decode(read_own_file(file), type=Proof)
    except (OSError, msgspec.MsgspecError):
        return None
