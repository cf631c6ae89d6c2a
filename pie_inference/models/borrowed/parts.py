"""Parts of a module of transformers that are made ours once its weights are there."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...layers.grouped import has_grouped_product
from ...loading.weights import WeightLoader
from ...ops.interface import GroupedLinear, Ops


class OwnNorm(nn.Module):
    """Stands for a root mean square norm."""

    def __init__(self, ops: Ops, weight: Tensor, eps: float) -> None:
        super().__init__()
        self._ops, self.weight, self._eps = ops, weight, eps

    def forward(self, rows: Tensor) -> Tensor:
        if rows.dtype != self.weight.dtype:  # some code adds up in float32
            return F.rms_norm(rows, self.weight.shape, None, self._eps) * self.weight
        return self._ops.rms_norm(rows, self.weight, self._eps)

    def after_adding(self, residual: Tensor, rows: Tensor) -> Tensor:
        """Adds `rows` to `residual` in place, then normalizes the sum."""
        if rows.dtype != self.weight.dtype:
            return self.forward(residual.add_(rows))
        return self._ops.add_rms_norm(residual, rows, self.weight, self._eps)


def take_norms(model: Any, ops: Ops) -> None:
    """Makes norms ours that prove equal to ours on random rows in float32, one of each class and size."""
    proved: dict[tuple[type, int, float], float | None] = {}
    for name, module in list(model.named_modules()):
        weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if not type(module).__name__.endswith("RMSNorm") or not isinstance(weight, Tensor) or weight.dim() != 1:
            continue
        if not isinstance(eps, float):
            continue
        key = (type(module), len(weight), eps)
        if key not in proved:
            proved[key] = _added(module, len(weight), eps)
        added = proved[key]
        if added is not None:
            wide = torch.promote_types(weight.dtype, torch.float32)
            model.set_submodule(name, OwnNorm(ops, (weight.detach().to(wide) + added).to(weight.dtype), eps))


def _added(module: nn.Module, size: int, eps: float) -> float | None:
    """What a norm adds to its weight, 0 or 1; None: it is another function than ours."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(1, 4, size, generator=generator) * torch.tensor([1e-3, 1.0, 3.0, 100.0])[:, None]
    trial = copy.deepcopy(module).float().cpu()
    weight = torch.randn(size, generator=generator)
    trial.weight = nn.Parameter(weight, requires_grad=False)
    with torch.no_grad():
        expected = trial(rows)
        for added in (0.0, 1.0):
            found = F.rms_norm(rows, (size,), weight + added, eps)
            if expected.shape == found.shape and torch.allclose(expected, found, rtol=1e-5, atol=1e-6):
                return added
    return None


class _Layers(nn.ModuleList):
    """Layers of which code takes the first ones in each forward: a list of them is made faster than a module."""

    def __getitem__(self, index: Any) -> Any:
        return list(self._modules.values())[index] if isinstance(index, slice) else super().__getitem__(index)


def list_layers(model: Any) -> None:
    """Makes lists of modules give slices quickly."""
    for module in model.modules():
        if type(module) is nn.ModuleList:
            module.__class__ = _Layers


def text_part(model: Any) -> Any:
    """What makes text of a model of more than text: a causal model within it, or the model itself without its other
    parts."""
    embedding = model.get_input_embeddings()
    models = [each for each in model.modules() if isinstance(each, PreTrainedModel) and embedding in each.modules()]
    head = next((each for each in (one.get_output_embeddings() for one in models) if each is not None), None)
    if causal := [each for each in models[1:] if head in each.modules()]:
        return causal[0]
    for outer in models[:-1]:
        for name, child in list(outer.named_children()):
            beside = outer is not model or isinstance(child, PreTrainedModel)
            if beside and not {embedding, head} & set(child.modules()):
                del outer._modules[name]
    text = type(models[-1].config)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, PreTrainedModel) and child not in models and type(child.config) is not text:
                del parent._modules[name]  # a tower within the model of text
    return model


def with_numbers(model: Any, device: str) -> Any:
    """A model that was made on the device `meta`, with the weights of nobody."""
    if device != "meta":
        model.to_empty(device=device)
        for module in model.modules():
            module._is_hf_initialized = False
        model.initialize_weights()
        model.tie_weights()
    return model


def freeze_positions(model: Any, context: int, device: torch.device) -> None:
    """Makes rotations that follow the longest text of a batch those of the served context, for all texts. So no
    result depends on what else runs."""
    for module in model.modules():
        following = following_of(module)
        for layer in following:
            given = {} if layer is None else {"layer_type": layer}
            module(torch.zeros(1, 1, 1, device=device), torch.tensor([[context - 1]], device=device), **given)
        if following:
            stop_following(module, context)


def stop_following(module: Any, context: int = 1) -> None:
    """Makes a module keep the rotations that it has, with the scale for texts of this context, where there are two."""
    kinds = module.rope_type
    module.rope_type = dict.fromkeys(kinds, "default") if isinstance(kinds, dict) else "default"
    parameters = module.config.rope_parameters
    if "long_mscale" in parameters:
        which = "long_mscale" if context > parameters["original_max_position_embeddings"] else "short_mscale"
        module.config = copy.copy(module.config)
        module.config.rope_parameters = parameters | {"rope_type": "default", "attention_factor": parameters[which]}


def stop_scaling(model: Any) -> None:
    """Makes Llama 4 leave queries as they are: it scales those from position `floor_scale` on, which no text reaches,
    and takes the rows of a batch for positions."""
    for module in model.modules():
        if hasattr(module, "attn_temperature_tuning"):
            module.attn_temperature_tuning = False


def following_of(module: Any) -> list[str | None]:
    """The kinds of layers, if it tells them apart, for which a module has rotations that follow the longest text."""
    kinds = getattr(module, "rope_type", None)
    by_layer = kinds if isinstance(kinds, dict) else {None: kinds}
    return [layer for layer, kind in by_layer.items() if kind and ("dynamic" in kind or kind == "longrope")]


def experts_of(model: Any) -> dict[str, Any]:
    """The modules that hold all experts of a layer and run them by transformers' interface of experts."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "_is_expert_parallel")}


def batched_experts_of(model: Any) -> dict[str, Any]:
    """The modules that hold all experts of a layer and run each of them over all tokens (Llama 4)."""
    return {name: module for name, module in model.named_modules() if type(module).__name__ == "Llama4TextExperts"}


def stacks_of(module: Any) -> tuple[str, str]:
    """The two parameters of such a module, each with the weights of all experts."""
    return "gate_up_proj" if getattr(module, "has_gate", True) else "up_proj", "down_proj"


def has_halves(module: Any) -> bool:
    """Whether the first of these has all gates in front of what they gate."""
    return bool(getattr(module, "has_gate", True) and getattr(module, "is_concatenated", True))


def is_transposed(module: Any) -> bool:
    """Whether these have a weight as [in_features, out_features]."""
    return bool(getattr(module, "is_transposed", True))


def takes_experts(weights: WeightLoader) -> bool:
    """Whether experts become products of ours: elsewhere those of transformers' code are as fast."""
    return weights.quantized or weights.device.type == "cpu"


def can_record_experts(model: Any, weights: WeightLoader) -> bool:
    """Whether a graph can record the experts of all layers, if there are any."""
    experts = experts_of(model) | (batched_experts_of(model) if takes_experts(weights) else {})
    return all(_can_record(module, weights) for module in experts.values())


def _can_record(module: Any, weights: WeightLoader) -> bool:
    if hasattr(module, "own"):
        return bool(module.own.capturable)
    sizes = (module.get_parameter(name).shape[1:] for name in stacks_of(module))
    return all(has_grouped_product(weights.device, weights.dtype, each) for each in sizes)


def take_experts(module: Any, weights: WeightLoader, first: GroupedLinear, second: GroupedLinear) -> None:
    """Makes the experts of a module run by products of all: their first layers, and their second ones. What is between
    them stays transformers' own."""
    count = len(module.get_parameter(stacks_of(module)[0]))
    for name in stacks_of(module):
        del module._parameters[name]
    kind = _Experts if hasattr(module, "_is_expert_parallel") else _BatchedExperts
    module.own = kind(module, first, second, torch.arange(count, device=weights.device), weights.dtype)
    module.forward = module.own


class _BatchedExperts:
    """The forward of a module whose experts each get all tokens: rows of zeros, if they were not chosen."""

    capturable = False  # the host must know how many rows are others

    def __init__(
        self, module: Any, first: GroupedLinear, second: GroupedLinear, every: Tensor, dtype: torch.dtype
    ) -> None:
        self._module, self._first, self._second, self._every, self._dtype = module, first, second, every, dtype

    def __call__(self, hidden: Tensor) -> Tensor:
        """hidden: [experts * T, hidden_size], those of each expert one behind the other; so is what it returns."""
        chosen = hidden.any(-1).nonzero()[:, 0]
        found = torch.zeros_like(hidden)
        if len(chosen):
            count = len(hidden) // len(self._every)
            ends = torch.searchsorted(chosen, (self._every + 1) * count, out_int32=True)
            gate, up = self._first(hidden[chosen].to(self._dtype), ends).chunk(2, -1)
            found[chosen] = self._second(up * self._module.act_fn(gate), ends).to(found.dtype)
        return found


class _Experts:
    """The forward of a module with experts, as transformers' `grouped_mm_experts_forward` has it."""

    def __init__(
        self, module: Any, first: GroupedLinear, second: GroupedLinear, every: Tensor, dtype: torch.dtype
    ) -> None:
        self._module, self._first, self._second, self._every, self._dtype = module, first, second, every, dtype
        self.capturable = first.capturable and second.capturable

    def __call__(self, hidden: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """hidden: [T, hidden_size]; chosen experts and their shares: [T, experts of a token]. Returns the weighted sums
        over the chosen experts [T, hidden_size]."""
        module, count = self._module, chosen.shape[1]
        experts, order = chosen.reshape(-1).sort(stable=True)
        ends = torch.searchsorted(experts, self._every, right=True, out_int32=True)
        first, second = stacks_of(module)
        inner = self._biased(first, experts, self._first(hidden.index_select(0, order // count).to(self._dtype), ends))
        inner = module._apply_gate(inner) if module.has_gate else module.act_fn(inner)
        found = self._biased(second, experts, self._second(inner.to(self._dtype), ends))
        if module.has_post_expert_norm:
            found = module.post_expert_norm(found)
        weighted = found * shares.reshape(-1, 1).index_select(0, order)
        weighted = torch.empty_like(weighted).index_copy_(0, order, weighted)
        return weighted.view(len(hidden), count, -1).sum(1).to(hidden.dtype)

    def _biased(self, name: str, experts: Tensor, rows: Tensor) -> Tensor:
        """Rows with the biases of their experts."""
        module = self._module
        return rows + module.get_parameter(f"{name}_bias").index_select(0, experts) if module.has_bias else rows


class _HeldSteps(nn.Module):
    """Stands for the first product of a Mamba 2 layer, whose last outputs are its time steps."""

    def __init__(self, product: nn.Module, lowest: Tensor, highest: Tensor) -> None:
        super().__init__()
        self._product, self._lowest, self._highest = product, lowest, highest

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = self._product(rows)
        steps = found[..., -len(self._lowest) :]
        steps.copy_(torch.clamp(steps, self._lowest, self._highest))
        return found


def hold_time_steps(model: Any) -> None:
    """Keeps time steps within `time_step_limit` where a token runs alone, too: there transformers' code leaves them as
    they are, which is another function than that of a text."""
    for module in list(model.modules()):
        limit, bias = getattr(module, "time_step_limit", None), getattr(module, "dt_bias", None)
        if not isinstance(bias, Tensor) or not isinstance(limit, (tuple, list)) or not hasattr(module, "in_proj"):
            continue
        low, high = (torch.tensor(float(each), dtype=torch.float64).expm1().log().item() for each in limit)
        if (low, high) != (-torch.inf, torch.inf):
            wide = bias.detach().double()
            bounds = ((each - wide).to(bias.dtype) for each in (low, high))
            module.in_proj = _HeldSteps(module.in_proj, *bounds)
