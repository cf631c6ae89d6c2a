"""How ranks share a model of transformers: by the plan that transformers has for it (`tp_plan`), which gives linear
layers, experts and parameters a style each. A model without a plan is shared by the usual names of its linear layers;
the proof finds out if these mean something else. Linear layers that neither names are split by their outputs, which are
gathered: so it is with those around a state, whose code takes its own part of them (`ours/shared_states.py`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ....device.ranks import Ranks, share
from ....layers.grouped import make_grouped
from ....loading.weights import Block, Split, WeightLoader
from ....ops.interface import GroupedLinear, Linear
from ..ours.scans import keeps_state
from ..parts import experts_of, has_halves, is_transposed, stacks_of

Experts = tuple[list[list[Block]], int]
"""The rows of the checkpoint of each expert, and its input features."""


@dataclass(frozen=True)
class _Style:
    """How a linear layer is split; `whole`: the code around it sees all inputs and outputs on each rank."""

    split: Split
    whole: bool


LINEAR: Mapping[str, _Style] = {
    "colwise": _Style("outputs", False),
    "colwise_gather_output": _Style("outputs", True),
    "colwise_rep": _Style("outputs", True),
    "rowwise": _Style("inputs", False),
    "rowwise_split_input": _Style("inputs", True),
    "rowwise_rep": _Style("inputs", True),
}
PARAMETERS: Mapping[str, tuple[int, int]] = {
    "colwise": (-2, 1),
    "rowwise": (-1, 1),
    "packed_colwise": (-2, 2),
    "packed_rowwise": (-1, 2),
}
"""The dimension along which a parameter is split, and how many matrices are side by side in it."""
SUMMED = "summed"
"""The style of a parameter that is added to what ranks add up: each has a part of its numbers."""
USUAL: Mapping[str, str] = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "fc1"), "colwise"),
    **dict.fromkeys(("o_proj", "out_proj", "down_proj", "fc2"), "rowwise"),
}
"""The styles of linear layers in most plans, by the last part of their names."""
GATHERED = "colwise_gather_output"
"""The style of linear layers that nothing else is known of: no code can tell it from a layer that is not split."""
EXPERTS = "moe_tp_experts"
WHOLE = {
    "embedding_colwise",
    "embedding_rowwise",
    "local_params",
    "mla_kv_a_proj",
    "replicate",
    "replicated_with_grad_allreduce",
}
"""Styles of what each rank has whole here, or that matter for training only."""


def plan_of(model: Any) -> dict[str, str]:
    """The style of each module and parameter that the plan of transformers names; if that names none inside of layers,
    of those with usual names. Empty: nothing in layers can be split."""
    plan = getattr(model, "_tp_plan", None) or {}
    modules, head = dict(model.named_modules()), model.get_output_embeddings()
    names = [*modules, *(name for name, _ in model.named_parameters())]
    general = {name: re.sub(r"\.\d+(?=\.|$)", ".*", name) for name in names}
    told = {name: plan[pattern] for name, pattern in general.items() if pattern in plan}
    linear = {name: module for name, module in modules.items() if isinstance(module, nn.Linear)}

    def splits_layers(plan: Mapping[str, str]) -> bool:
        return any(style not in WHOLE and modules.get(name) is not head for name, style in plan.items())

    if not splits_layers(told):
        told = _usual(model, linear) | told
    least = model.get_input_embeddings().embedding_dim / 4  # gathering would take longer than what it saves
    large = {name for name, layer in linear.items() if min(layer.in_features, layer.out_features) >= least}
    plan = dict.fromkeys(large, GATHERED) | told
    return plan if splits_layers(plan) else {}


def _usual(model: Any, linear: Iterable[str]) -> dict[str, str]:
    """A plan by the usual names of linear layers, but for those of modules that keep a state."""
    keeping = tuple(f"{name}." for name, module in model.named_modules() if keeps_state(module))
    plan = {
        name: USUAL[last]
        for name in linear
        if (last := name.rpartition(".")[2]) in USUAL and not name.startswith(keeping)
    }
    if plan:
        for name, module in experts_of(model).items():
            plan |= _usual_experts(name, module)
    return plan


def _usual_experts(name: str, module: Any) -> dict[str, str]:
    """A plan of a module with all experts of a layer. Where gates are not in front of what they gate, each is beside
    it."""
    first, second = (f"{name}.{part}" for part in stacks_of(module))
    packed = "packed_" if has_halves(module) else ""
    outs, ins = ("rowwise", "colwise") if is_transposed(module) else ("colwise", "rowwise")
    plan = {name: EXPERTS, first: packed + outs, second: ins}
    if module.has_bias:
        plan |= {f"{first}_bias": f"{packed}rowwise", f"{second}_bias": SUMMED}
    return plan


def why_one_rank(model: Any) -> str:
    """Why ranks cannot share a model, as far as its plan tells; "": they can."""
    plan = plan_of(model)
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters())
    for name, style in plan.items():
        module = modules.get(name)
        if name in parameters:
            known = {*PARAMETERS, SUMMED}
        else:
            known = {*LINEAR} if isinstance(module, nn.Linear) else {EXPERTS}
        if style not in known | WHOLE:
            return f"transformers' plan says {style!r} for {name}, which Pie does not know"
    return ""


class Splits:
    """What of a model this rank has. With one rank, that is all."""

    def __init__(self, model: Any, ranks: Ranks, whole: bool = False) -> None:
        """`whole`: what a layer finds is gathered everywhere, whatever the plan says."""
        self._model, self._ranks, self._whole = model, ranks, whole
        self._plan = plan_of(model) if ranks.size > 1 else {}

    def can_join(self, names: Sequence[str], whole: bool) -> bool:
        """Whether the layers of these names are split in one way, so that the outputs of each rank may be those of one
        layer. `whole`: what comes next needs the outputs of all ranks."""
        styles = {LINEAR.get(self._plan.get(name, "")) for name in names}
        if whole and self._ranks.size > 1:
            return False
        return len(styles) == 1 and not any(style is not None and (style.whole or self._whole) for style in styles)

    def linear(
        self, weights: WeightLoader, names: Sequence[str], blocks: Sequence[Block], ins: int, **more: Any
    ) -> Linear:
        """Like `WeightLoader.linear`, for layers of the model; several ones can be joined."""
        style = LINEAR.get(self._plan.get(names[0], ""))
        whole = style is not None and (style.whole or self._whole)
        if style is None or (whole and (blocks[0].rows if style.split == "outputs" else ins) % self._ranks.size):
            return weights.linear(blocks, ins, **more)
        multiply, ranks = weights.linear(blocks, ins, split=style.split, **more), self._ranks
        if not whole:
            return multiply
        if style.split == "outputs":
            return lambda rows: ranks.all_gather(multiply(rows))
        count = ins // ranks.size
        return lambda rows: multiply(rows.narrow(1, ranks.rank * count, count).contiguous())

    def share_of(self, name: str) -> Callable[[Tensor], Tensor] | None:
        """What cuts this rank's share out of a parameter; None: it is whole."""
        told = self._plan.get(name, "")
        if told not in (*PARAMETERS, SUMMED) or self._plan.get(name.rpartition(".")[0]) != EXPERTS:
            return None  # such as sinks, of which attention takes its own
        if told == SUMMED:
            return lambda tensor: tensor / self._ranks.size
        dim, packed = PARAMETERS[told]

        def own_share(tensor: Tensor) -> Tensor:
            parts = tensor.chunk(packed, dim)
            count = share(self._ranks, parts[0].shape[dim], f"features of {name}")
            return torch.cat([part.narrow(dim, self._ranks.rank * count, count) for part in parts], dim)

        return own_share

    def experts(
        self, weights: WeightLoader, name: str, first: Experts, second: Experts
    ) -> tuple[GroupedLinear, GroupedLinear]:
        """The first layers of all experts, and their second ones."""
        (outer, ins), (inner, width) = first, second
        if self._plan.get(name) != EXPERTS:
            return make_grouped(weights, outer, ins), make_grouped(weights, inner, width)
        if has_halves(self._model.get_submodule(name)):
            outer = [_halves(own) for own in outer]
        return make_grouped(weights, outer, ins, "outputs"), make_grouped(weights, inner, width, "inputs")

    def add_up_experts(self) -> None:
        """Makes experts that are split add up what ranks find. Call it once they have their weights."""
        for name in (name for name, style in self._plan.items() if style == EXPERTS):
            module = self._model.get_submodule(name)
            module.forward = _summed(module.forward, self._ranks)


def _summed(forward: Callable[..., Tensor], ranks: Ranks) -> Callable[..., Tensor]:
    """A forward of which each rank finds a part of the sum."""
    return lambda *given, **more: ranks.all_reduce(forward(*given, **more))


def _halves(blocks: Sequence[Block]) -> list[Block]:
    """The gate of an expert and what it gates, where one block has both."""
    if len(blocks) != 1:
        return list(blocks)
    [both] = blocks
    rows = both.rows // 2
    gate = replace(both, rows=rows, total=both.total or both.rows)
    return [gate, replace(gate, first=both.first + rows)]
