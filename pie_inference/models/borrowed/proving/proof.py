"""Proves that transformers' code serves a model over pages: its small form, with random weights, must equal
transformers' own forward without a cache, in float32, over batches, chunks, forks and decode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, partial
from threading import Lock
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from ....attention.torch.pages import TorchAttention
from ....device.ranks import Ranks, SingleRank, run_ranks
from ....errors import CheckpointError
from ....kv_cache.pages import KvCache, KvShape
from ....loading.weights import WeightLoader
from ....ops.torch_ops import TorchOps
from ....protocol import Forward
from ....recurrence.batches import pieces_of
from ....recurrence.interface import NONE
from ....recurrence.states import States
from ..base import Head, base_of
from ..code import class_of, first_line, make, read
from ..config import borrowed_config
from ..model import BorrowedModel, build
from ..survey import Proof, StatePart, Survey
from .census import survey
from .shrink import shrink

SIZE = 2


def shared(survey: Survey, program: Callable[[Survey, Ranks], float], tolerance: float) -> Survey:
    """The survey of a model, with how ranks share it, or why they cannot. `program(survey, rank)` gives the largest
    difference of a logit on one of the ranks. Code that sees a share of the features where it needs them all may do
    with all of them, and code that goes on from states in ways that nobody knows with whole ones."""
    reason, divided = "", all(part.shape_on(SIZE) != part.shape for part in survey.state if part.shared is not None)
    whole_state = whole_states(survey.state)
    for state in dict.fromkeys((survey.state if divided else whole_state, whole_state)):
        for whole in (False, True):
            found = msgspec.structs.replace(survey, whole=whole, state=state)
            failed = _failure(partial(program, found), tolerance)
            if not failed:
                return found
            reason = reason or failed
    return msgspec.structs.replace(survey, one_rank=f"split in two, {reason}")


def whole_states(state: Iterable[StatePart]) -> tuple[StatePart, ...]:
    """The parts of a state, of which each rank has all."""
    return tuple(msgspec.structs.replace(part, shared=None) for part in state)


def _failure(program: Callable[[Ranks], float], tolerance: float) -> str:
    try:
        worst = max(run_ranks(SIZE, program))
    except Exception as error:
        return f"a small form of it fails: {first_line(error)}"
    return "" if worst <= tolerance else f"the logits of a small form of it differ by {worst:.1e}"


TOLERANCE = 1e-4
STATE_TOLERANCE = 5e-4
FIXED = "transformers' code does not turn its keys by halves of a head, with the frequencies of its rotary module"
PAGE_SIZE = 16
NUM_PAGES = 32
LENGTHS = (23, 9, 37)
STEPS = 4

Tokens = list[int]


def prove(raw: Mapping[str, Any], architecture: str) -> Proof:
    """What is known of a model. Raises CheckpointError with the reason if it cannot be served."""
    config = read(raw, architecture)
    found = survey(config)
    try:
        values = shrink(config)
        with torch.random.fork_rng(), torch.inference_mode():
            torch.manual_seed(0)  # some parameters are random where code of transformers begins
            proved, difference = _proved(values, class_of(config).__name__)
        fixed = found.fixed_positions or proved.fixed_positions
        names = ("no_graphs", "one_rank", "whole")
        told = {name: getattr(found, name) or getattr(proved, name) for name in names}
        state = found.state if any(part.shared is not None for part in proved.state) else whole_states(found.state)
        return Proof("", msgspec.structs.replace(found, fixed_positions=fixed, state=state, **told), difference)
    except CheckpointError as error:
        raise CheckpointError(f"{error} (in a small form of it, which is to prove that it is exact)") from None
    except Exception as error:
        raise CheckpointError(
            f"config.json: {architecture} is not supported: a small form of it, which is to prove that it is exact, "
            f"fails: {first_line(error)}"
        ) from None


def _proved(values: Mapping[str, Any], architecture: str) -> tuple[Survey, float]:
    """What was found out about a small model, and the largest difference."""
    config = read(values, architecture)
    reference = make(config, torch.float32, "cpu", "eager")
    randomize(reference)
    found = survey(config, small=True)

    one_at_a_time = Lock()  # a forward of transformers may change its module for a while

    @cache
    def told(tokens: tuple[int, ...]) -> Tensor:
        return _told(reference, torch.tensor([tokens]))

    def alone(tokens: Tokens) -> Tensor:
        with one_at_a_time:
            return told(tuple(tokens))

    def built(survey: Survey, ranks: Ranks) -> tuple[BorrowedModel, States]:
        stored = _InMemory(reference.state_dict())
        weights = WeightLoader(stored, TorchOps(CPU, torch.float32), torch.float32, CPU, ranks)
        model = build(borrowed_config(values, architecture, survey, 0.0), weights)
        if (state := model.config.state_of(ranks)) is not None:
            weights.states.allocate(NUM_PAGES, state)
        return model, weights.states

    model, states = built(found, SingleRank())
    worst = _difference(model, states, alone)
    if not model.config.fixed_positions and not _moved(_Pages(model, states), alone) <= TOLERANCE:
        found = msgspec.structs.replace(found, fixed_positions=FIXED)

    def parted(survey: Survey, ranks: Ranks) -> float:
        programs, parts = (_chunks, _drafts) if survey.state else (_chunks,), built(survey, ranks)
        return max(program(_Pages(*parts, ranks), alone) for program in programs)

    return found if found.one_rank else shared(found, parted, _tolerance(states)), worst


def _told(reference: Any, tokens: Tensor) -> Tensor:
    """What transformers computes without a cache of tokens [1, T]: logits [T, vocab_size]. Some code of more than text
    asks for its other parts whatever it is given: there it is the text model, with its head."""
    try:
        logits: Tensor = reference(input_ids=tokens, use_cache=False).logits[0]
    except AttributeError:
        if not reference.config.sub_configs:
            raise
        logits = Head(reference)(base_of(reference)(input_ids=tokens, use_cache=False)[0][0])
    return logits


def _tolerance(states: States) -> float:
    """How large a difference of a logit may be."""
    return STATE_TOLERANCE if states.slots else TOLERANCE


def _difference(model: BorrowedModel, states: States, alone: Alone) -> float:
    """The largest difference of a logit. Raises CheckpointError for one that is too large."""
    worst = 0.0
    for name, program in (PROGRAMS | STATE_PROGRAMS if states.slots else PROGRAMS).items():
        difference = program(_Pages(model, states), alone)
        if not difference <= _tolerance(states):
            raise CheckpointError(
                f"config.json: {model.config.architecture} is not supported: over pages its logits differ by "
                f"{difference:.1e} from those of transformers in {name}"
            )
        worst = max(worst, difference)
    return worst


CPU = torch.device("cpu")


class _InMemory:
    """Implements `TensorSource`."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def names(self) -> Iterable[str]:
        """All names."""
        return self._tensors

    def shape(self, name: str) -> Sequence[int]:
        """The shape of a tensor."""
        return tuple(self._tensors[name].shape)

    def check(self, name: str, shape: Sequence[int]) -> None:
        """Does nothing: these are the tensors of the same model."""

    def differ(self, one: str, other: str) -> bool:
        """Whether two tensors have different numbers."""
        return not torch.equal(self._tensors[one], self._tensors[other])

    def read(self, name: str, shape: Sequence[int]) -> Tensor:
        """One tensor."""
        return self._tensors[name]


def randomize(model: Any) -> None:
    """Weights that make all parts of a model count: transformers' own are so small that logits hardly differ."""
    generator = torch.Generator().manual_seed(0)
    for name, weight in sorted(model.named_parameters()):
        noise = torch.randn(weight.shape, generator=generator)
        if weight.dim() > 1:
            fan_in = 1 if "embed" in name else weight[0].numel() if weight.dim() == 2 else weight.shape[-1]
            weight.copy_(noise * min(0.3, fan_in**-0.5))
        else:
            weight.add_(noise * 0.1)


class _Text:
    """A text in pages; the slot with its state behind `length` tokens."""

    def __init__(self, pages: Sequence[int] = (), length: int = 0, state: int = NONE) -> None:
        self.pages, self.length, self.state = list(pages), length, state
        self.ahead = 0  # how much further its positions are than its places

    def slots(self, places: Iterable[int]) -> list[int]:
        """Where its tokens are."""
        return [self.pages[at // PAGE_SIZE] * PAGE_SIZE + at % PAGE_SIZE for at in places]


class _Pages:
    """A model with pages of its own."""

    def __init__(self, model: BorrowedModel, states: States, ranks: Ranks | None = None) -> None:
        config = model.config
        num_heads, kv_heads = config.heads_of(ranks or SingleRank())
        self._states, self._used_states = states, 0
        shape = KvShape(len(config.attention), kv_heads, config.head_dim, PAGE_SIZE, torch.float32)
        self._model, self._used = model, 0
        self._cache = KvCache(shape, NUM_PAGES, CPU)
        self._attention = TorchAttention(self._cache, num_heads, config.attention)

    def run(self, *parts: tuple[_Text, Tokens], each: bool = False) -> list[Tensor]:
        """Appends tokens to texts; the logits at each of them. `each`: a state is left behind each of them."""
        counts = [len(tokens) for _, tokens in parts]
        slots: list[int] = []
        positions: list[int] = []
        for text, tokens in parts:
            end = text.length + len(tokens)
            while len(text.pages) * PAGE_SIZE < end:
                text.pages.append(self._used)
                self._used += 1
            new = range(text.length, end)
            slots += text.slots(new)
            positions += [at + text.ahead for at in new]
            text.length = end
        texts, rows = [text for text, _ in parts], np.arange(sum(counts), dtype=np.int32)
        ends = [min(PAGE_SIZE, text.length - first * PAGE_SIZE) for text in texts for first in range(len(text.pages))]
        batch = Forward(
            q_indptr=_int32(np.cumsum([0, *counts])),
            q_embeds=rows,
            q_positions=_int32(positions),
            q_slots=_int32(slots),
            kv_indptr=_int32(np.cumsum([0, *(len(text.pages) for text in texts)])),
            kv_pages=_int32([page for text in texts for page in text.pages]),
            kv_begins=np.zeros(len(ends), np.int32),
            kv_ends=_int32(ends),
            dense=np.ones(len(texts), np.bool_),
            out_rows=rows,
            out_embeds=rows,
            **self._slots(texts, counts, each),
        )
        given = torch.tensor([token for _, tokens in parts for token in tokens])
        hidden = self._model.embed(given)
        found = torch.empty_like(hidden)
        with self._states.beside(batch):
            for piece in pieces_of(batch, self._model.config.cut):
                found[piece.batch.out_embeds] = self._run(piece.batch, hidden, given)
        return list(torch.split(self._model.logits(found), counts))

    def move_back(self, text: _Text) -> None:
        """Moves the keys of a text that was run ahead to where they belong."""
        text.ahead, places = 0, range(text.length)
        slots, positions = _int32(text.slots(places)), _int32(places)
        far = torch.from_numpy(self._cache.distances(slots, positions)).long()
        self._cache.shift(slots, positions, self._model.moves(far, torch.float32))

    def _run(self, batch: Forward, hidden: Tensor, given: Tensor) -> Tensor:
        own, positions = torch.from_numpy(batch.q_embeds), torch.from_numpy(batch.q_positions).long()
        plan, keep = self._attention.plan(batch), torch.from_numpy(batch.out_rows).long()
        with nullcontext() if batch.state_reads is None else self._states.piece(batch):
            return self._model.forward(hidden[own], positions, plan, keep, given[own])

    def _slots(self, texts: Sequence[_Text], counts: Sequence[int], each: bool) -> dict[str, Any]:
        """Each text leaves its state in a slot of its own, as others may have begun with the one that it reads."""
        if not self._states.slots:
            return {}
        reads, writes = [text.state for text in texts], np.full(sum(counts), NONE)
        kept = np.arange(sum(counts)) if each else np.cumsum(counts) - 1
        writes[kept] = self._used_states + np.arange(len(kept))
        self._used_states += len(kept)
        for text, last in zip(texts, np.cumsum(counts) - 1, strict=True):
            text.state = int(writes[last])
        return {"state_reads": _int32(reads), "state_writes": _int32(writes)}


def _int32(values: Any) -> Any:
    return np.asarray(values, np.int32)


Alone = Callable[[Tokens], Tensor]


def _texts() -> list[Tokens]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(6, 250, (length,), generator=generator).tolist() for length in LENGTHS]


def _distance(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).abs() / (1 + expected.abs())).max().item()


def _batches(pages: _Pages, alone: Alone) -> float:
    texts, inside = _texts(), [_Text() for _ in LENGTHS]
    found = pages.run(*zip(inside, texts, strict=True))
    for _ in range(STEPS):
        chosen = [[int(logits[-1].argmax())] for logits in found]
        more = pages.run(*zip(inside, chosen, strict=True))
        found = [torch.cat(both) for both in zip(found, more, strict=True)]
        texts = [text + token for text, token in zip(texts, chosen, strict=True)]
    return max(_distance(each, alone(text)) for each, text in zip(found, texts, strict=True))


def _chunks(pages: _Pages, alone: Alone) -> float:
    texts, inside = _texts(), [_Text() for _ in LENGTHS]
    first = pages.run(*((one, text[: len(text) // 2]) for one, text in zip(inside, texts, strict=True)))
    second = pages.run(*((one, text[len(text) // 2 :]) for one, text in zip(inside, texts, strict=True)))
    both = [torch.cat(parts) for parts in zip(first, second, strict=True)]
    return max(_distance(each, alone(text)) for each, text in zip(both, texts, strict=True))


def _forks(pages: _Pages, alone: Alone) -> float:
    other, _, text = _texts()
    shared = text[: 2 * PAGE_SIZE]
    parent = _Text()
    pages.run((parent, shared))
    tails = (text[len(shared) :], other)
    found = pages.run(*((_Text(parent.pages, parent.length, parent.state), tail) for tail in tails))
    return max(_distance(each, alone(shared + tail)[len(shared) :]) for each, tail in zip(found, tails, strict=True))


def _drafts(pages: _Pages, alone: Alone) -> float:
    """A text goes on behind the second of four tokens, beside one that begins with a single token."""
    short, _, text = _texts()
    parent, kept = _Text(), len(text) - 2
    pages.run((parent, text[:-4]))
    pages.run((parent, text[-4:]), each=True)
    both = [_Text(parent.pages, kept, parent.state - 2), _Text()]
    steps = [pages.run(*((one, [token]) for one in both)) for token in short[:STEPS]]
    found = [torch.cat(each) for each in zip(*steps, strict=True)]
    expected = [alone(tokens + short[:STEPS])[-STEPS:] for tokens in (text[:kept], [])]
    return max(map(_distance, found, expected))


def _moved(pages: _Pages, alone: Alone) -> float:
    """A text goes on where its keys were moved to."""
    text, inside = _texts()[2], _Text()
    inside.ahead = 19
    pages.run((inside, text[:20]))
    pages.move_back(inside)
    [found] = pages.run((inside, text[20:]))
    return _distance(found, alone(text)[20:])


PROGRAMS: dict[str, Callable[[_Pages, Alone], float]] = {
    "texts that are run in parts": _chunks,
    "a batch of texts": _batches,
    "texts that share their beginning": _forks,
}
STATE_PROGRAMS = {"texts that go on within drafts": _drafts}
