"""Loads a model as its plan says, and allocates its pools."""

from __future__ import annotations

import io

import torch

from .. import protocol as wire
from ..adapters.adapters import Adapters
from ..attention.choose import choose_attention
from ..attention.cpu.pages import CpuAttention
from ..cpu_kernels.sampling import SamplingKernels
from ..cpu_kernels.ways import OWN, Ways
from ..device.machine import free_bytes_of_rank
from ..execution.direct import PiecewiseExecutor
from ..execution.embeds import Embeds
from ..execution.graphs import make_executor
from ..execution.image_encoder import ImageEncoder
from ..execution.served_model import ServedModel
from ..grammars.rows import Constraints
from ..kv_cache import sizing
from ..kv_cache.copy_lane import make_lane
from ..kv_cache.host_pages import HostPages, HostStates
from ..kv_cache.pages import KvCache
from ..loading.progress import LoadProgress
from ..loading.quantized.layers import QuantizedTensors
from ..loading.weights import WeightLoader
from ..models.image_processor import TILE_SLOTS
from ..models.registry import build_model
from ..models.vision import VisionTower
from ..options.freed_memory import release_freed
from ..quantization.choose import choose_quantizer, library_for
from .kernels import choose_ops, choose_products, choose_recurrences
from .plan import ServingPlan

MAX_DIST = 4096
IMAGE_CALL = wire.call_name(wire.EmbedImg)
HEAD_CALLS = [wire.call_name(each) for each in (wire.Sample, wire.Verify, wire.GetNextDist, wire.GetLogprobs)]
"""Calls of the output head."""


def load(plan: ServingPlan, ways: Ways = OWN) -> ServedModel:
    """The model with its pools; `ways` say whose products it uses on a CPU. Raises CheckpointError or ConfigError."""
    progress = _show_progress(plan)
    weights = _weight_loader(plan, ways, progress)
    model = build_model(plan.model, weights)
    progress.finish()
    release_freed()
    free = free_bytes_of_rank(plan.device, plan.ranks)
    num_pages = plan.num_pages(free)
    if plan.state_shape is not None:
        weights.states.allocate(plan.num_states(free), plan.state_shape)
    cache = KvCache(plan.kv_shape, num_pages, plan.device)
    max_swap_pages = sizing.fitting_swap_pages(plan.kv_shape, plan.config.host_pages)
    lane = make_lane(plan.device)
    host_pages = HostPages(cache, plan.config.host_pages, max_swap_pages, lane)
    num_host_states = sizing.fitting_host_states(plan.config.host_pages, num_pages, weights.states.slots)
    host_states = HostStates(weights.states.pool if weights.states.slots else None, num_host_states, lane)
    embeds = Embeds.make(plan.num_embeds, plan.model.hidden_size, plan.dtype, plan.device, plan.model.by_token)
    attention = choose_attention(plan.config.attention, plan.attention_requirements(num_pages, ways.attention), cache)
    adapters = _adapters(plan, ways, weights)
    recordable = isinstance(attention, CpuAttention) and plan.ranks.size == 1
    library = plan.library if recordable else None
    executor = make_executor(plan.config.graphs, model, attention, embeds, adapters, library, plan.ranks)
    if plan.model.cut != "none":
        executor = PiecewiseExecutor(executor, model, cache, embeds, adapters, weights.states)
    return ServedModel(
        model=model,
        cache=cache,
        host_pages=host_pages,
        host_states=host_states,
        executor=executor,
        adapters=adapters,
        states=weights.states,
        ranks=plan.ranks,
        embeds=embeds,
        tokens=torch.zeros(plan.config.token_slots, dtype=torch.int64, device=plan.device),
        description=_describe(plan, host_pages, host_states, weights),
        constraints=_constraints(plan) if plan.ranks.rank == 0 else None,
        sampling=SamplingKernels(plan.library) if plan.library is not None else None,
        images=_image_encoder(plan, model.vision),
    )


def _constraints(plan: ServingPlan) -> Constraints:
    return Constraints(plan.tokenizer.tokenizer, plan.model.vocab_size, plan.tokenizer.stop_tokens)


def _adapters(plan: ServingPlan, ways: Ways, weights: WeightLoader) -> Adapters:
    config = plan.config
    most_bytes = (config.adapter_mb << 20) // plan.ranks.size
    products = choose_products(config.kernels, plan.device, plan.dtype, plan.library_for(ways.low_rank))
    return Adapters(weights.adapted, products, plan.dtype, plan.device, config.max_adapters, most_bytes)


def _image_encoder(plan: ServingPlan, tower: VisionTower | None) -> ImageEncoder | None:
    config = plan.model.vision
    if config is None or tower is None or plan.images is None:
        return None
    return ImageEncoder(config, tower, plan.images, TILE_SLOTS, plan.dtype, plan.device)


def _weight_loader(plan: ServingPlan, ways: Ways, progress: LoadProgress) -> WeightLoader:
    config, device, dtype = plan.config, plan.device, plan.dtype
    quantizer = choose_quantizer(config.quantization, device, dtype, plan.library_for(ways.quantized))
    ops = choose_ops(config.kernels, device, dtype, plan.library, ways.linear)
    recurrences = choose_recurrences(config.kernels, device, dtype, plan.library)
    scheme, kernels = plan.checkpoint.scheme, library_for(plan.library_for(ways.quantized), dtype)
    stored = None if scheme is None else QuantizedTensors(scheme, plan.checkpoint, kernels)
    return WeightLoader(plan.checkpoint, ops, dtype, device, plan.ranks, quantizer, progress, recurrences, stored)


def _show_progress(plan: ServingPlan) -> LoadProgress:
    """Shows progress, on the leader only and for its own share; other ranks take about as long."""
    silent = None if plan.ranks.rank == 0 else io.StringIO()
    return LoadProgress(plan.checkpoint.num_bytes() // plan.ranks.size, silent)


def _calls(plan: ServingPlan) -> tuple[str, ...]:
    lacking = [*([] if plan.images else [IMAGE_CALL]), *([] if plan.model.has_head else HEAD_CALLS)]
    has = {"forward_with_adapter": plan.config.max_adapters, "state": plan.state_bytes}
    return (*(call for call in wire.BATCHES if call not in lacking), *(call for call in wire.EXTENSIONS if has[call]))


def _describe(
    plan: ServingPlan, host_pages: HostPages, host_states: HostStates, weights: WeightLoader
) -> wire.ModelDescription:
    config, model, size = plan.config, plan.model, plan.ranks.size
    return wire.ModelDescription(
        name=config.name,
        architecture=model.architecture,
        calls=_calls(plan),
        dtype=str(plan.dtype).removeprefix("torch."),
        device=str(plan.device) if size == 1 else f"{size} x {plan.device.type}",
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        max_context=model.max_context,
        page_size=config.page_size,
        num_pages=host_pages.cache.num_pages,
        num_host_pages=host_pages.num_pages,
        num_embeds=plan.num_embeds,
        num_token_slots=config.token_slots,
        max_batch_tokens=config.max_batch_tokens,
        max_batch_rows=config.max_batch_rows,
        max_dist=min(model.vocab_size, MAX_DIST),
        max_swap_pages=host_pages.max_swap_pages,
        stop_tokens=plan.tokenizer.stop_tokens,
        tokenizer=plan.tokenizer.tokenizer,
        tokenizer_config=plan.tokenizer.config,
        page_bytes=size * plan.kv_shape.page_bytes,
        weight_bytes=size * weights.bytes_loaded,
        vision=plan.vision,
        fixed_positions=model.fixed_positions,
        by_token=model.by_token,
        num_states=weights.states.slots,
        states_by_row=bool(weights.states.slots) and model.cut != "texts",
        state_bytes=size * plan.state_bytes,
        num_host_states=host_states.slots,
        pooling=plan.pooling,
        sampling=plan.tokenizer.sampling,
    )
