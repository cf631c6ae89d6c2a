"""How keys of transformers' code follow from positions: by frequencies that its rotary modules keep as buffers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from ..survey import Heads

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
