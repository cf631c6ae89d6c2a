"""What raw calls mean: an interpreter that runs them at once, in the order of issue, independent of the server's code.

It knows no queues, batches, waves or physical memory: pages and embeds are dictionaries. What a model computes is a
parameter; `HashModel` is the fake one's arithmetic (`pie_control/testing/fake_model.py`) in plain integers.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
VOCAB = 259
NO_ADAPTERS: Mapping[str, Path] = MappingProxyType({})

Held = tuple[Any, int]
"""What a slot or an embed holds, and its position."""


Mask = Sequence[Sequence[bool]]
"""Of each input, whether it sees each token of the context, and then each input."""


Step = tuple[int, tuple[int, int] | None, Held | None]
"""Of a decode run: its token, and where the token before it was put, as what."""


Choose = Callable[[Any, Sequence[int]], int]
"""The next token of a decode run, from an output and the tokens of the run before."""


Exported = list[tuple[list[Held | None], set[int]]]
"""Of each page its slots, and those that are hidden."""


class Arithmetic(Protocol):
    """What a model computes."""

    def embed(self, token: int) -> Any:
        """What an input embed holds."""

    def run(
        self, context: Sequence[Held], inputs: Sequence[Held], mask: Mask | None = None, adapter: str = ""
    ) -> tuple[list[Any], list[Any]]:
        """The keys and the outputs of the inputs. Each sees the context at smaller positions, and the inputs up to
        itself; or what a mask says. `adapter`: its name; "": none."""

    def scores(self, context: Sequence[Held], inputs: Sequence[Held], adapter: str = "") -> list[float]:
        """The attention that each token of the context and each input gets of all inputs of a `run` without a mask."""

    def moved(self, key: Any, by: int) -> Any:
        """What is in the cache of a token that was moved."""

    def most_probable(self, output: Any) -> int:
        """The greedy token at an output."""

    def logits(self, output: Any) -> NDArray[np.float64]:
        """[vocab_size]"""

    def state(self, output: Any) -> NDArray[np.float64]:
        """[hidden_size], of which vectors of texts are pooled."""

    close: float
    """Logits that differ by less may change places."""
    draws_in_order: bool
    """Whether a sampler without bounds draws among tokens in the order of their ids; else, of their logits."""


def mix(value: int) -> int:
    z = (value + GOLDEN) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


@cache
def power(index: int) -> int:
    return pow(GOLDEN, index + 1, 1 << 64)


_TOKENS = np.array([mix(token) for token in range(VOCAB)], np.uint64)


def _hashed(value: int, position: int) -> int:
    return mix(value ^ mix(mix(position)))


class HashModel:
    """Implements `Arithmetic` as the fake model does. `adapters`: their folders, by name."""

    close = 1e-9
    draws_in_order = False

    def __init__(self, adapters: Mapping[str, Path] = NO_ADAPTERS) -> None:
        texts = {name: (folder / "adapter_config.json").read_bytes() for name, folder in adapters.items()}
        self._changes = {"": 0, **{name: zlib.crc32(text) * GOLDEN & MASK for name, text in texts.items()}}

    def embed(self, token: int) -> int:
        return mix(token)

    def run(
        self, context: Sequence[Held], inputs: Sequence[Held], mask: Mask | None = None, adapter: str = ""
    ) -> tuple[list[int], list[int]]:
        change = self._changes[adapter]
        new = [value ^ change for value, _ in inputs]
        keys = [_hashed(*held) for held in context]
        own = [_hashed(value, position) for value, (_, position) in zip(new, inputs, strict=True)]
        outputs: list[int] = []
        for n, (_, position) in enumerate(inputs):
            visible = [key for key, (_, at) in zip(keys, context, strict=True) if at < position] + own[: n + 1]
            if mask is not None:
                visible = [key for key, is_seen in zip([*keys, *own], mask[n], strict=True) if is_seen]
            outputs.append(mix(sum(key * power(n) for n, key in enumerate(visible)) & MASK))
        return new, outputs

    def scores(self, context: Sequence[Held], inputs: Sequence[Held], adapter: str = "") -> list[float]:
        """Each input gives the same to all that it sees."""
        found = np.zeros(len(context) + len(inputs))
        for n, (_, position) in enumerate(inputs):
            seen = [at < position for _, at in context] + [other <= n for other in range(len(inputs))]
            found += np.array(seen) / sum(seen)
        return [float(score) for score in found]

    def moved(self, key: int, by: int) -> int:
        return key

    def most_probable(self, output: int) -> int:
        return int(self._numbers(output).argmax())

    def logits(self, output: int) -> NDArray[np.float64]:
        return self._numbers(output).astype(np.float64) * (8.0 / 2**53)

    def state(self, output: int) -> NDArray[np.float64]:
        return self.logits(output)[:8] - 4

    def _numbers(self, output: int) -> NDArray[np.uint64]:
        """Of 53 bits."""
        z = (np.uint64(output) ^ _TOKENS) + np.uint64(GOLDEN)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found: NDArray[np.uint64] = (z ^ (z >> np.uint64(31))) >> np.uint64(11)
        return found


class IssueOrder:
    """The state of one inferlet as its calls say. Calls that must be refused return False and change nothing."""

    def __init__(self, page_size: int, most_tokens: int, model: Arithmetic) -> None:
        self.page_size = page_size
        self.model = model
        self.most_tokens = most_tokens  # in a batch of the worker
        self.pages: dict[int, list[Held | None]] = {}
        self.hidden: set[tuple[int, int]] = set()  # pages with slots in them
        self.sealed: set[int] = set()  # pages that nobody writes to
        self.unbound: set[int] = set()  # pages without memory, which only decode runs write to
        self.embeds: dict[int, Held] = {}  # those that are filled
        self.outputs: set[int] = set()  # of these, the ones that a forward filled

    def allocate(self, pages: Sequence[int]) -> None:
        for page in pages:
            self.pages[page] = [None] * self.page_size

    def reserve(self, pages: Sequence[int]) -> None:
        self.allocate(pages)
        self.unbound |= set(pages)

    def forget(self, pages: Sequence[int], embeds: Sequence[int]) -> None:
        for page in pages:
            del self.pages[page]
            self.sealed.discard(page)
            self.unbound.discard(page)
            self._show(page)
        self.empty(embeds)

    def embed_txt(self, tokens: Sequence[int], positions: Sequence[int], embeds: Sequence[int]) -> None:
        self.fill(list(map(self.model.embed, tokens)), positions, embeds)

    def fill(self, values: Sequence[Any], positions: Sequence[int], embeds: Sequence[int]) -> None:
        """With what stands for tokens, or for parts of an image."""
        for value, position, embed in zip(values, positions, embeds, strict=True):
            self.embeds[embed] = value, position
            self.outputs.discard(embed)

    def set_positions(self, positions: Sequence[int], embeds: Sequence[int]) -> bool:
        if any(embed not in self.embeds for embed in embeds):
            return False
        for position, embed in zip(positions, embeds, strict=True):
            self.embeds[embed] = self.embeds[embed][0], position
        return True

    def forward(
        self,
        context: Sequence[int],
        inputs: Sequence[int],
        targets: Sequence[int],
        outputs: Sequence[int],
        mask: Mask | None = None,
        adapter: str = "",
    ) -> bool:
        """The mask counts hidden tokens, too."""
        free = self._free(targets, len(inputs)) if targets else []
        if free is None or any(embed not in self.embeds for embed in inputs):
            return False
        filled = self.columns(context)
        later = mask is not None and any(any(row[len(filled) + n + 1 :]) for n, row in enumerate(mask))
        if len(inputs) > self.most_tokens and (not targets or later or self._overwrites_inputs(inputs, outputs)):
            return False
        if mask is not None:
            shown = [not is_hidden for is_hidden in filled] + [True] * len(inputs)
            mask = [[one for one, kept in zip(row, shown, strict=True) if kept] for row in mask]
        seen = self._context(context)
        given = [self.embeds[embed] for embed in inputs]
        positions = [position for _, position in given]
        keys, results = self.model.run(seen, given, mask, adapter)
        for (page, slot), *key in zip(free, keys, positions, strict=False):
            self.pages[page][slot] = (key[0], key[1])
        kept = zip(results, positions, strict=True)
        for embed, result in zip(outputs, [*kept][len(inputs) - len(outputs) :], strict=True):
            self.embeds[embed] = result
            self.outputs.add(embed)
        return True

    def forward_with_scores(
        self,
        context: Sequence[int],
        inputs: Sequence[int],
        targets: Sequence[int],
        outputs: Sequence[int],
        adapter: str = "",
    ) -> list[float] | None:
        """The attention that each token got which one of the inputs sees; None: it is refused."""
        if len(inputs) > self.most_tokens or any(embed not in self.embeds for embed in inputs):
            return None
        given = [self.embeds[embed] for embed in inputs]
        latest = max(position for _, position in given)
        seen = [(key, position) for key, position in self._context(context) if position < latest]
        scores = self.model.scores(seen, given, adapter)
        return scores if self.forward(context, inputs, targets, outputs, None, adapter) else None

    def step(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        inputs: Sequence[int],
        context: Sequence[int],
        targets: Sequence[int],
        output: int,
        mask: Mask | None = None,
        adapter: str = "",
    ) -> bool:
        """`embed_txt` and `forward`, both or none."""
        before = dict(self.embeds), set(self.outputs)
        self.embed_txt(tokens, positions, inputs)
        if self.forward(context, inputs, targets, [output], mask, adapter):
            return True
        self.embeds, self.outputs = before
        return False

    def _context(self, pages: Sequence[int]) -> list[Held]:
        return [key for page in pages for key in self._seen(page)]

    def _free(self, targets: Sequence[int], count: int, of_run: bool = False) -> list[tuple[int, int]] | None:
        """The next slots that so many tokens get; None: there are not as many, or one of a sealed page is before."""
        empty = [(page, slot) for page in targets for slot, key in enumerate(self.pages[page]) if key is None]
        withheld = self.sealed if of_run else self.sealed | self.unbound
        free = [one for one in empty if one[0] not in withheld]
        if len(free) < count:
            return None
        sealed = any(page in self.sealed for page, _ in empty[: empty.index(free[count - 1])])
        return None if sealed else free[:count]

    def plan_run(
        self,
        embed: int,
        position: int,
        context: Sequence[int],
        targets: Sequence[int],
        steps: int,
        adapter: str = "",
        choose: Choose | None = None,
    ) -> list[Step] | None:
        """What a decode run of so many steps does; None: it is refused. Nothing changes. `choose`: not the most
        probable token."""
        if embed not in self.outputs:
            return None
        choose = choose or (lambda output, own: self.model.most_probable(output))
        seen = self._context(context)
        if steps > 1 and any(position <= at < position + steps - 2 for _, at in seen):
            return None
        free = self._free(targets, steps - 1, of_run=True) if steps > 1 else []
        if free is None:
            return None
        seen = [(key, at) for key, at in seen if at < position]
        plan: list[Step] = [(choose(self.embeds[embed][0], []), None, None)]
        for n, slot in enumerate(free):
            [key], [output] = self.model.run(seen, [(self.model.embed(plan[-1][0]), position + n)], None, adapter)
            seen.append((key, position + n))
            plan.append((choose(output, [token for token, *_ in plan]), slot, seen[-1]))
        return plan

    def end_run(self, plan: Sequence[Step]) -> None:
        """A run has ended behind these steps."""
        for _, place, key in plan:
            if place is not None:
                self.pages[place[0]][place[1]] = key
                self.unbound.discard(place[0])

    def empty(self, embeds: Sequence[int]) -> None:
        """Nobody knows what is in embeds."""
        for embed in embeds:
            self.embeds.pop(embed, None)
            self.outputs.discard(embed)

    def columns(self, context: Sequence[int]) -> list[bool]:
        """Whether each token of the pages is hidden."""
        slots = [(page, slot) for page in context for slot, key in enumerate(self.pages[page]) if key is not None]
        return [one in self.hidden for one in slots]

    def _seen(self, page: int) -> list[Held]:
        keys = enumerate(self.pages[page])
        return [key for slot, key in keys if key is not None and (page, slot) not in self.hidden]

    def _show(self, page: int, first: int = 0) -> None:
        """All tokens of a page from a slot on."""
        self.hidden -= {(page, slot) for slot in range(first, self.page_size)}

    def _overwrites_inputs(self, inputs: Sequence[int], outputs: Sequence[int]) -> bool:
        """Whether an output goes to the input of a later token."""
        first = len(inputs) - len(outputs)
        return any(embed in inputs[first + n + 1 :] for n, embed in enumerate(outputs))

    def copy_kvpage(self, source: Sequence[int], target: Sequence[int]) -> bool:
        sources, targets = ([divmod(slot, self.page_size) for slot in slots] for slots in (source, target))
        keys = [(self.pages[page][slot], (page, slot) in self.hidden) for page, slot in sources]
        if any(key is None for key, _ in keys) or any(page in self.sealed | self.unbound for page, _ in targets):
            return False
        for (page, slot), (key, is_hidden) in zip(targets, keys, strict=True):
            self.pages[page][slot] = key
            self.hidden.discard((page, slot))
            if is_hidden:
                self.hidden.add((page, slot))
        return True

    def shift_kvpage(self, pages: Sequence[int], by: int, limit: int) -> bool:
        """`limit`: of positions."""
        slots = [(page, slot) for page in pages for slot in range(self.page_size) if (page, slot) not in self.hidden]
        held = [(page, slot, key) for page, slot in slots if (key := self.pages[page][slot]) is not None]
        if any(page in self.sealed | self.unbound for page in pages) or (pages and not held):
            return False
        if any(not 0 <= at + by < limit for *_, (_, at) in held):
            return False
        for page, slot, (key, at) in held:
            self.pages[page][slot] = self.model.moved(key, by), at + by
        return True

    def mask_kvpage(self, pages: Sequence[int], places: Sequence[int]) -> bool:
        slots = [(page, slot) for page in pages for slot in range(self.page_size)]
        named = {slots[place] for place in places}
        if any(self.pages[page][slot] is None for page, slot in named):
            return False
        self.hidden = (self.hidden - set(slots)) | named
        return True

    def copy_emb(self, source: Sequence[int], target: Sequence[int]) -> bool:
        if any(embed not in self.embeds for embed in source):
            return False
        read = [(self.embeds[embed], embed in self.outputs) for embed in source]
        for embed, (held, is_output) in zip(target, read, strict=True):
            self.embeds[embed] = held
            self.outputs.discard(embed)
            if is_output:
                self.outputs.add(embed)
        return True

    def export_kvpage(self, pages: Sequence[int]) -> Exported | None:
        """Seals pages; gives what they hold. None: it is refused."""
        if any(page in self.unbound for page in pages):
            return None
        self.sealed |= set(pages)
        return [(list(self.pages[page]), {slot for one, slot in self.hidden if one == page}) for page in pages]

    def import_kvpage(self, first: int, exported: Exported) -> None:
        for page, (keys, hidden) in enumerate(exported, first):
            self.pages[page] = list(keys)
            self.sealed.add(page)
            self.hidden |= {(page, slot) for slot in hidden}

    def trim_kvpage(self, pages: Sequence[int], keep: int) -> bool:
        for number, page in enumerate(pages):
            kept = min(max(0, keep - number * self.page_size), self.page_size)
            if page in self.sealed and any(key is not None for key in self.pages[page][kept:]):
                return False
        for number, page in enumerate(pages):
            kept = min(max(0, keep - number * self.page_size), self.page_size)
            self.pages[page][kept:] = [None] * (self.page_size - kept)
            self._show(page, kept)
        return True

    def next_token(self, embed: int) -> int | None:
        """The greedy token at an embed; None: it is no output."""
        return self.model.most_probable(self.embeds[embed][0]) if embed in self.outputs else None
