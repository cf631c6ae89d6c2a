"""Graphs of small batches: CUDA graphs of decode steps on GPUs, and lists of calls on CPUs (`cpu_recorder`).

A decode step of a large model is hundreds of small kernels, and launching them one by one takes longer than running
them. A graph launches all of them with one call, but it replays exactly the recorded kernels on the same memory. So
each size has its own graph over buffers at fixed addresses, and a second one with the kernels of adapters. A batch is
filled up to the next size with rows that write to a scratch slot, loaded into the buffers, and replayed.

A graph is recorded when it is needed. The first batch of a size runs directly, which also compiles and warms up the
kernels; the second is recorded. Recording at start would delay it by seconds, for sizes that may never occur. Recording
later costs that batch about as much as running it directly.

All ranks of a group record a graph, or none does: one that ran a batch in another way than the others would leave them
in collective operations that it takes no part in. So they meet when they have the memory, before they run any of these,
and again when they have recorded.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..adapters.adapters import Adapters
from ..adapters.groups import FEW_ROWS, Groups
from ..attention.interface import AttentionBackend, GraphBackend, GraphPlan
from ..cpu_kernels.library import Library
from ..device.ranks import Ranks
from ..device.tensors import index_tensor, upload_together
from ..errors import BatchError
from ..models.interface import Model
from ..protocol import Forward
from .cpu_recorder import CpuRecorder
from .direct import DirectExecutor, Executor
from .embeds import Embeds

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
"""Numbers of sequences that have a CUDA graph. Filling up wastes little: a decode step of 24 rows takes as long as one
of 17."""

Work = Callable[[], None]
Result = TypeVar("Result")

Kind = tuple[int, tuple[int, ...] | None]
"""What a graph is for: its size, and the form of the adapters (`AdaptedLayers.form`); None: no row has one."""


class Recorder(Protocol):
    """Makes graphs."""

    @property
    def sizes(self) -> Sequence[int]:
        """Numbers of rows that have a graph, in order."""

    def warm_up(self, work: Work) -> None:
        """Runs `work` before it is recorded, where a recording needs that. Raises what `work` does."""

    def record(self, work: Work) -> Work | None:
        """A function that runs the kernels that `work` launches, as long as the caller keeps `work`: graphs hold no
        memory but that of intermediate results. Recording may run them, too. None: there is no room for their results.
        Raises RuntimeError if `work` cannot be recorded."""


class CudaRecorder:
    """Implements `Recorder`. All graphs share memory for intermediate results, because they never run side by side."""

    sizes = SIZES

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, work: Work) -> None:
        work()  # kernels that were not needed yet are loaded, which cannot be done within a recording

    def record(self, work: Work) -> Work:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                work()
        finally:
            torch.cuda.set_stream(stream)  # torch stays on its own stream where a recording fails
        return graph.replay


@dataclass(frozen=True)
class _Recording:
    """One graph with its buffers, for batches of at most `plan.size` rows."""

    plan: GraphPlan
    inputs: Tensor  # int64 [2, size], embeds and positions
    outputs: Tensor  # [size, hidden_size]
    groups: Groups | None  # of adapters
    work: Work  # owns what else `replay` reads
    replay: Work  # `work` itself until it is recorded


class GraphExecutor:
    """Implements `Executor`: runs batches that can be replayed by graphs, others by `direct`."""

    def __init__(
        self,
        direct: Executor,
        model: Model,
        attention: GraphBackend,
        embeds: Embeds,
        adapters: Adapters,
        recorder: Recorder,
        ranks: Ranks,
    ) -> None:
        self._direct = direct
        self._model = model
        self._attention = attention
        self._embeds = embeds
        self._adapters = adapters
        self._running = adapters.layers.running
        self._recorder = recorder
        self._ranks = ranks
        self._seen: set[Kind] = set()
        self._recordings: dict[Kind, _Recording | None] = {}  # None: there is no room for one
        self._broken = not model.capturable

    def forward(self, batch: Forward) -> None:
        recording = self._recording(batch)
        if recording is None:
            self._direct.forward(batch)
        else:
            self._replay(recording, batch)

    def _recording(self, batch: Forward) -> _Recording | None:
        """The graph for a batch, recorded now if possible; None if there is none."""
        size = _next_size(len(batch.q_slots), self._recorder.sizes)
        if self._broken or size is None or not self._attention.can_replay(batch):
            return None
        kind = self._kind(size)
        if kind is None:
            return None
        if kind not in self._seen:
            self._seen.add(kind)
            return None
        if kind not in self._recordings:
            self._try_record(kind, batch)
        return self._recordings.get(kind)

    def _kind(self, size: int) -> Kind | None:
        """The kind of a batch with the adapters that run now; None: no graph can hold their kernels."""
        if self._running.groups is None:
            return size, None
        if size > FEW_ROWS or not self._running.products.capturable:
            return None
        return size, self._adapters.layers.form

    def _try_record(self, kind: Kind, batch: Forward) -> None:
        """Records a graph, on all ranks or on none. After a failure such batches run directly; all do if none was
        recorded before, as such a model cannot be recorded later. Raises what would leave other ranks waiting."""
        if kind[1] is not None:
            for old in [one for one in self._recordings if one[1] not in (None, kind[1])]:
                del self._recordings[old]  # of adapters that had another form
        apart = False  # whether an error leaves other ranks in an operation
        try:
            prepared = self._on_all_ranks(lambda: self._prepare(kind[0]))
            apart = self._ranks.size > 1
            prepared.plan.update(batch)
            self._recorder.warm_up(prepared.work)
            apart = False
            replay = self._on_all_ranks(lambda: self._recorder.record(prepared.work))
            self._recordings[kind] = None if replay is None else replace(prepared, replay=replay)
        except BatchError:
            raise
        except Exception as error:  # of compilers and drivers, of which each has its own
            self._broken = not any(self._recordings.values())
            self._recordings[kind] = None
            which = "decode" if self._broken else f"decode of {kind[0]} sequences"
            print(f"{which} runs kernel by kernel: recording a step failed: {error}", file=sys.stderr)
            if apart:
                raise

    def _on_all_ranks(self, step: Callable[[], Result]) -> Result:
        """What `step` gives. Raises its error; RuntimeError where only that of another rank failed."""
        try:
            result = step()
        except Exception:
            self._ranks.all_reduce_min(0)
            raise
        if not self._ranks.all_reduce_min(1):
            raise RuntimeError("another rank of the group could not, and says why")
        return result

    def _prepare(self, size: int) -> _Recording:
        """What will be recorded, with its memory."""
        vectors = self._embeds.vectors
        device = vectors.device
        plan = self._attention.graph_plan(size)
        inputs = torch.zeros(2, size, dtype=torch.int64, device=device)
        outputs = torch.zeros(size, vectors.shape[1], dtype=vectors.dtype, device=device)
        every = torch.arange(size, device=device)
        groups = None if self._running.groups is None else Groups.room(size, self._adapters.most, device)

        def work() -> None:
            embeds, positions = inputs
            with self._running.using(groups):
                hidden, tokens = self._embeds.inputs(embeds)
                outputs.copy_(self._model.forward(hidden, positions, plan, every, tokens))

        return _Recording(plan, inputs, outputs, groups, work, work)

    def _replay(self, recording: _Recording, batch: Forward) -> None:
        indices = [
            _filled_up(batch, recording.plan.size, len(self._embeds)),
            index_tensor(batch.out_embeds, len(self._embeds), "embed"),
            index_tensor(batch.out_rows, len(batch.q_embeds), "row"),
        ]
        recording.plan.update(batch)
        inputs, outputs, keep = upload_together(indices, self._embeds.vectors.device)
        recording.inputs.copy_(inputs)
        if recording.groups is not None and self._running.groups is not None:
            recording.groups.fill(self._running.groups)
        recording.replay()
        self._embeds.vectors.index_copy_(0, outputs, recording.outputs.index_select(0, keep))


def make_executor(
    choice: str,
    model: Model,
    attention: AttentionBackend,
    embeds: Embeds,
    adapters: Adapters,
    library: Library | None,
    ranks: Ranks,
) -> Executor:
    """The executor of a model. It uses graphs where the attention backend can be recorded, unless `choice`
    (`WorkerOptions.graphs`) forbids them. `library`: the kernels for CPUs, if steps consist of these and of torch."""
    direct = DirectExecutor(model, attention, embeds)
    if choice == "off" or not isinstance(attention, GraphBackend):
        return direct
    recorder: Recorder
    if embeds.vectors.device.type == "cuda":
        recorder = CudaRecorder()
    elif library is not None:
        recorder = CpuRecorder(library)
    else:
        return direct
    return GraphExecutor(direct, model, attention, embeds, adapters, recorder, ranks)


def _next_size(rows: int, sizes: Sequence[int]) -> int | None:
    place = bisect_left(sizes, rows)
    return sizes[place] if rows and place < len(sizes) else None


def _filled_up(batch: Forward, size: int, num_embeds: int) -> Tensor:
    """Embeds and positions of the batch, int64 [2, size]; missing rows read the last embed at position 0."""
    filled = torch.zeros(2, size, dtype=torch.int64)
    rows = index_tensor(batch.q_embeds, num_embeds, "embed")
    filled[0, : len(rows)] = rows
    filled[0, len(rows) :] = rows[-1]
    filled[1, : len(rows)] = torch.from_numpy(batch.q_positions.astype(np.int64))
    return filled
