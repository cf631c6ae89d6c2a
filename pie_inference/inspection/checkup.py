"""Describes a checkpoint without reading a weight."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from ..assembly.plan import ModelFiles, ServingPlan, make_plan, read_model
from ..assembly.tensors import check_borrowed_tensors
from ..attention.choose import name_of_choice
from ..config import WorkerConfig
from ..device.ranks import SingleRank
from ..errors import InferenceError
from ..kv_cache.sizing import fitting_host_states
from ..loading.hub import folder_to_describe
from ..loading.pooling_files import read_pooling
from ..loading.weight_sizes import WeightSize, sizes
from .products import ServedProducts, describe_products


@dataclass(frozen=True)
class ModelShape:
    """Sizes of the model itself."""

    family: str  # model_type of config.json
    architecture: str
    code: str  # whose code runs it, and how that is known to be exact
    parameters: int
    file_bytes: int
    scheme: str  # how the weights of the checkpoint are quantized; empty: they are not
    max_context: int
    weights: tuple[WeightSize, ...]  # in every form, the largest first
    pooling: str  # as in `ModelDescription`


@dataclass(frozen=True)
class ServingChoice:
    """How the model would be served here."""

    device: str
    dtype: str
    why_dtype: str
    quantization: str
    attention: str
    products: ServedProducts
    threads: int
    weight_bytes: int
    free_bytes: int
    page_bytes: int
    page_size: int  # tokens in a page
    num_pages: int
    state_bytes: int  # of the state of a text; 0: the model keeps none
    num_states: int
    host_pages: int  # that pages could be swapped to
    host_states: int

    @property
    def cached_tokens(self) -> int:
        """Tokens that the KV cache would hold, of all sequences together."""
        return self.num_pages * self.page_size


@dataclass(frozen=True)
class Checkup:
    """Everything known about a checkpoint. `problem` says why it cannot be served; then the rest may be missing."""

    model: str
    problem: str | None
    shape: ModelShape | None
    choice: ServingChoice | None

    def as_json(self) -> dict[str, Any]:
        """Nested objects, as `pie models --json` prints them."""
        found = asdict(self)
        if self.choice is not None:
            found["choice"]["cached_tokens"] = self.choice.cached_tokens
        return found


def check_up(config: WorkerConfig) -> Checkup:
    """Describes a checkpoint as far as possible. Wrong checkpoints and options do not raise; they give a `problem`."""
    name = str(config.model)
    try:
        with folder_to_describe(config.model) as folder:
            found = _check_up(replace(config, model=folder))
    except InferenceError as error:
        return Checkup(name, str(error), None, None)
    return replace(found, model=name, problem=found.problem and found.problem.replace(str(folder), name))


def _check_up(config: WorkerConfig) -> Checkup:
    shape: ModelShape | None = None
    try:
        files = read_model(config)
        shape = _shape(files)
        plan = make_plan(config, files, SingleRank())
        check_borrowed_tensors(plan.model, plan.checkpoint, plan.dtype)
        choice = _choice(plan)
    except InferenceError as error:
        return Checkup(str(config.model), str(error), shape, None)
    return Checkup(str(config.model), None, shape, choice)


def _shape(files: ModelFiles) -> ModelShape:
    checkpoint = files.checkpoint
    return ModelShape(
        family=str(files.raw_config.get("model_type", "unknown")),
        architecture=files.config.architecture,
        code=files.config.code,
        parameters=checkpoint.num_parameters(),
        file_bytes=checkpoint.file_bytes,
        scheme=checkpoint.quantized,
        max_context=files.config.max_context,
        weights=sizes(checkpoint),
        pooling=read_pooling(checkpoint.folder),
    )


def _choice(plan: ServingPlan) -> ServingChoice:
    left = plan.free_bytes - plan.weight_bytes
    num_pages, num_states = plan.num_pages(left), plan.num_states(left)
    products = describe_products(plan)
    return ServingChoice(
        device=str(plan.device),
        dtype=str(plan.dtype).removeprefix("torch."),
        why_dtype=plan.why_dtype,
        quantization=plan.config.quantization,
        attention=name_of_choice(
            plan.config.attention, plan.attention_requirements(num_pages, products.ways.attention)
        ),
        products=products,
        threads=plan.threads,
        weight_bytes=plan.weight_bytes,
        free_bytes=plan.free_bytes,
        page_bytes=plan.kv_shape.page_bytes,
        page_size=plan.config.page_size,
        num_pages=num_pages,
        state_bytes=plan.state_bytes,
        num_states=num_states,
        host_pages=plan.config.host_pages,
        host_states=fitting_host_states(plan.config.host_pages, num_pages, num_states),
    )
