"""One forward of the whole model on the device `meta`: it takes no memory, and shows what each attention asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.fx.experimental import _config as torch_config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from ....attention.interface import AttentionSpec
from ....errors import CheckpointError
from ...config_json import ConfigJson
from ...rope_json import read_context
from ..base import Base, Head, sinks_of
from ..cache import new_cache, parts_of
from ..code import STATES, attending, first_line, make, text_of, why_state
from ..filling.split import why_one_rank
from ..ours.shared_states import shared_parts
from ..parts import following_of, stop_following
from ..survey import Heads, StatePart, Survey
from .host_reads import HostReads

FREQUENCIES = "inv_freq"
"""The name of such a buffer; in a module for several kinds of layers, its end."""


class Traced:
    """Finds out which frequencies have turned a key, of a model whose attention hands nothing of its keys on: the
    results of rotary modules are what differentiation goes back to."""

    def __init__(self, model: Any) -> None:
        """Differentiation has to be enabled, and ends at weights of the model from here on."""
        model.requires_grad_(False)
        self._results: list[tuple[Tensor, str]] = []
        for name, module in model.named_modules():
            if any(each.endswith(FREQUENCIES) for each in module._buffers):
                module.register_forward_hook(partial(self._mark, name), with_kwargs=True)

    def _mark(self, name: str, _: Any, given: tuple[Any, ...], more: dict[str, Any], results: Any) -> Any:
        kinds = [f"{each}_{FREQUENCIES}" for each in (*given, *more.values()) if isinstance(each, str)]
        if isinstance(results, Tensor):  # complex numbers, which turn neighbours
            return results
        leaves = [each.detach().requires_grad_() for each in results]
        self._results += [(each, ".".join((name, *(kinds or [FREQUENCIES])))) for each in leaves]
        return tuple(each.clone() for each in leaves)  # code may change them in place

    def of(self, key: Tensor) -> tuple[str, ...]:
        """The buffers with the frequencies of a key; none: it is the same at all positions."""
        leaves = list(_leaves(key.grad_fn))
        return tuple(sorted({name for result, name in self._results if any(result is leaf for leaf in leaves)}))


def _leaves(begin: Any) -> Iterator[Tensor]:
    seen, left = set(), [begin]
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            left += [before for before, _ in node.next_functions]
            if hasattr(node, "variable"):
                yield node.variable


def why_fixed(model: Any, attentions: Sequence[Heads], follows: bool) -> str:
    """Why keys cannot be moved to other positions, as far as that is seen without numbers; "": they can. `follows`:
    rotations follow the longest text."""
    if follows:
        return "its rotary positions depend on the length of the text"
    buffers = dict(model.named_buffers())
    names = {name for one in attentions for name in one.frequencies}
    if any(len(one.frequencies) > 1 for one in attentions) or names - buffers.keys():
        return "transformers' code turns its keys by more than the frequencies of one kind of layer"
    if len({len(buffers[name]) for name in names}) > 1:
        return "its layers turn different parts of their keys"
    return ""


ROWS = 3
STATES_ALONE = (1 << 13, 1 << 20)
"""The default context and the longest one of models without attention: a state has no end."""
ATTENTION = {"attention", "chunked_attention", "full_attention", "sliding_attention"} | STATES
"""Kinds of layers that may attend. One that Pie does not know may see other tokens where it goes on from a cache."""
WINDOW_IN_MASKS = ("phimoe",)
"""Types whose layers all have the window of config.json, of which their code tells masks alone."""


class _Refused(Exception):
    """The code asks for what pages cannot give. The message ends a sentence."""


@torch.inference_mode(False)
def survey(config: Any, small: bool = False) -> Survey:
    """What a forward asks for. What it does with the host is seen at a `small` model only, as watching takes long.
    Raises CheckpointError."""
    model = make(config, torch.bfloat16, "meta")  # grouped products know no other on this device
    following = [module for module in model.modules() if following_of(module)]
    for module in following:
        stop_following(module)
    reads, attentions, linears = HostReads(), _Attentions(config, Traced(model)), _Linears(model)
    name = type(model).__name__
    try:
        with torch.device("meta"), torch.enable_grad(), attending(attentions), linears, _without_numbers(), _Forms():
            tokens = torch.zeros(1, ROWS, dtype=torch.int64)
            base, embeds = Base(model), model.get_input_embeddings()(tokens[0])
            cache = new_cache(model.config) if why_state(config) else None
            watched = small and cache is None  # with a state, no graph records it
            with reads.watched() if watched else nullcontext():
                hidden = base(embeds[None], torch.zeros_like(tokens), cache, tokens)
            logits = Head(model)(hidden[0])
    except (_Refused, CheckpointError) as refused:
        raise CheckpointError(f"config.json: {name} is not supported: {refused}") from None
    except Exception as error:
        raise CheckpointError(f"config.json: {name} is not supported: a forward fails: {first_line(error)}") from None
    state, found = () if cache is None else shared_parts(model, parts_of(cache)), attentions.found
    _check(name, found, state, embeds, hidden[0])
    sizes = (embeds.shape[-1], logits.shape[-1])
    context = _context(text_of(config), base.first_position) if found else _context_of_states(text_of(config))
    return Survey(
        *(tuple(found), *sizes, linears.irregular, *context, state),
        fixed_positions=why_fixed(model, found, bool(following)),
        by_token=base.asks_for_tokens,
        no_graphs=_why_no_graphs(found, state, reads),
        one_rank=why_one_rank(model),
    )


def _why_no_graphs(found: list[Heads], state: Sequence[StatePart], reads: HostReads) -> str:
    if state:
        return "texts with a state run in turns"
    if any(heads.sinks for heads in found):
        return "no kernel of attention with sinks can be recorded"
    return reads.found[0] if reads.found else ""


class _Attentions:
    """What each attention of a forward asks for, in the order in which it does."""

    def __init__(self, config: Any, traced: Traced) -> None:
        self.found: list[Heads] = []
        self._config, self._traced = config, traced
        self._written: list[tuple[Tensor, Tensor, AttentionSpec]] = []  # of each layer of the cache

    def __call__(self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **more: Any) -> Tensor:
        heads = _heads(self._config, module, query, key, value, mask, more)
        layer = self._layer_of(key, value, heads.spec)
        self.found.append(msgspec.structs.replace(heads, frequencies=self._traced.of(key), layer=layer))
        return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[3])

    def _layer_of(self, key: Tensor, value: Tensor, spec: AttentionSpec) -> int:
        """The layer of the cache that has these keys and values: an earlier one, if it has them already."""
        for layer, (its_key, its_value, its_spec) in enumerate(self._written):
            if its_key is key and its_value is value and its_spec == spec:
                return layer
        self._written.append((key, value, spec))
        return len(self._written) - 1


class _Linears:
    """Watches the linear layers of a model within."""

    def __init__(self, model: Any) -> None:
        self._layers = {name: module for name, module in model.named_modules() if type(module) is nn.Linear}
        self._output = model.get_output_embeddings()
        self._calls = Counter[str]()
        self._odd: set[str] = set()  # that saw other rows than those of the batch
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> None:
        self._hooks = [
            module.register_forward_pre_hook(partial(self._sees, name)) for name, module in self._layers.items()
        ]

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _sees(self, name: str, module: nn.Linear, given: tuple[Tensor, ...]) -> None:
        self._calls[name] += 1
        if given[0].numel() != ROWS * module.in_features:
            self._odd.add(name)

    @property
    def irregular(self) -> tuple[str, ...]:
        """Those that have not run once over the rows of the batch, but for the output head."""
        regular = {name for name, calls in self._calls.items() if calls == 1} - self._odd
        return tuple(
            name for name, module in self._layers.items() if name not in regular and module is not self._output
        )


class _Forms(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it, an operation on the device `meta` whose arguments have the forms of earlier ones gives a result of the
    same form, without torch's code for that, which takes a third of a millisecond each time."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._pure: dict[Any, bool] = {}  # whether an operation changes or hands on nothing of its arguments
        self._known: dict[Any, list[tuple[Any, ...]]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), more: Any = None) -> Any:
        if (pure := self._pure.get(function)) is None:
            schema = function._schema
            pure = self._pure[function] = all(one.alias_info is None for one in (*schema.arguments, *schema.returns))
        if not pure:
            return function(*given, **(more or {}))
        call = (function, _form(given), _form(more))
        if (known := self._known.get(call)) is None:
            result = function(*given, **(more or {}))
            results = result if isinstance(result, tuple) else (result,)
            if all(isinstance(each, Tensor) and each.is_meta for each in results):
                self._known[call] = [(each.shape, each.stride(), each.dtype) for each in results]
            return result
        made = tuple(torch.empty_strided(size, step, dtype=kind, device="meta") for size, step, kind in known)
        return made if len(function._schema.returns) > 1 else made[0]


def _form(given: Any) -> Any:
    """What an argument of an operation is, beside its numbers."""
    if isinstance(given, Tensor):
        return given.shape, given.stride(), given.dtype, given.device
    if isinstance(given, (tuple, list)):
        return tuple(map(_form, given))
    if isinstance(given, dict):
        return tuple((name, _form(each)) for name, each in given.items())
    return type(given), given


@contextmanager
def _without_numbers() -> Iterator[None]:
    """Within it, code that looks at numbers on the device `meta` goes on: arguments of distributions are not checked,
    and each number counts as another one than 0."""
    Distribution.set_default_validate_args(False)
    try:
        with torch_config.patch(meta_nonzero_assume_all_nonzero=True):  # type: ignore[attr-defined]
            yield
    finally:
        Distribution.set_default_validate_args(__debug__)


def _context(config: Any, first_position: int) -> tuple[int, int]:
    """The default context and the longest one. A text is one chunk at most where attention goes by chunks, and ends
    where queries would begin to be scaled by the number of their row (`stop_scaling`)."""
    values = {**config.to_dict(), "max_position_embeddings": getattr(config, "max_position_embeddings", None)}
    context = read_context(ConfigJson(values))
    longest = context.longest - first_position
    if "chunked_attention" in (getattr(config, "layer_types", None) or ()):
        longest = min(longest, int(config.attention_chunk_size))
    if getattr(config, "attn_temperature_tuning", False):
        longest = min(longest, int(config.floor_scale) - 1)
    return min(context.served, longest), longest


def _context_of_states(config: Any) -> tuple[int, int]:
    """Those of a model that attends to nothing, whose config.json need not name any."""
    named = getattr(config, "max_position_embeddings", None)
    return STATES_ALONE if named is None else (named, named)


def _check(name: str, found: list[Heads], state: Sequence[StatePart], embeds: Tensor, hidden: Tensor) -> None:
    def refuse(reason: str) -> None:
        raise CheckpointError(f"config.json: {name} is not supported: {reason}")

    if not found and not state:
        refuse("it attends beside transformers' interface of attention")
    if len({one.num_heads for one in found}) > 1:
        refuse("its layers have different numbers of heads")
    most = max((one.num_kv_heads for one in found), default=1)
    if any(most % one.num_kv_heads for one in found):
        refuse("its layers have different numbers of key-value heads, which do not divide each other")
    if embeds.shape != hidden.shape:
        refuse(f"its embeddings have {embeds.shape[-1]} numbers and its last states {hidden.shape[-1]}")


def _heads(
    config: Any, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, more: dict[str, Any]
) -> Heads:
    if mask is not None:
        raise _Refused("its code makes masks of its own")
    if more.get("position_bias") is not None:
        raise _Refused("its attention adds a bias by position")
    if more.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        raise _Refused("its attention is not causal")
    if key.shape[0] * key.shape[2] != ROWS or query.shape[0] * query.shape[2] != ROWS:
        raise _Refused("its attention sees other rows than those of the batch")
    own = getattr(module, "config", config)
    kinds, layer = getattr(own, "layer_types", None), getattr(module, "layer_idx", None)
    kind = kinds[layer] if kinds and layer is not None and layer < len(kinds) else None
    if kind is not None and kind not in ATTENTION:
        raise _Refused(f"layer_types has {kind!r}, which Pie does not know")
    window = more.get("sliding_window")
    if window is None and (kind == "sliding_attention" or own.model_type in WINDOW_IN_MASKS):
        window = own.sliding_window
    scale, width, cap = more.get("scaling"), query.shape[3], more.get("softcap")
    return Heads(
        num_heads=query.shape[1],
        num_kv_heads=key.shape[1],
        key_width=width,
        value_width=value.shape[3],
        scale=float(width**-0.5 if scale is None else scale),
        window=int(window) if window else None,
        soft_cap=float(cap) if cap else None,
        sinks=sinks_of(module, more) is not None,
    )
