"""The seam between the control layer and whatever runs its waves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from pie_inference.protocol import AdapterLoaded, DropAdapter, LoadAdapter, ModelDescription, Ready, RunWave, WaveDone

FORMS = ("dtype", "device", "page_bytes", "state_bytes", "weight_bytes")
POOLS = (
    "num_pages",
    "num_host_pages",
    "num_embeds",
    "num_token_slots",
    "max_swap_pages",
    "num_states",
    "num_host_states",
)
OWN = frozenset((*FORMS, *POOLS))
"""What workers of one model may differ in: inferlets do not see it, or are placed by it."""


class InferenceClient(Protocol):
    """One worker as the control layer sees it.

    All methods and callbacks belong to the thread of the asyncio loop in which `start` was awaited. Waves run and are
    answered in the order in which they are sent. After `on_lost` no answer to an earlier wave will come; `restart`
    gives a worker with empty pools.
    """

    on_wave_done: Callable[[WaveDone], None]
    """Called once for each wave."""
    on_lost: Callable[[str], None]
    """Called at most once after each `start` or `restart`, with what is known of the reason."""

    async def start(self) -> Ready:
        """Waits until the worker serves. Raises `errors.WorkerUnavailable` with what the worker said."""

    def send(self, wave: RunWave) -> None:
        """Hands a wave over without waiting. Raises `errors.WorkerUnavailable` when there is no worker."""

    async def load_adapter(self, message: LoadAdapter) -> AdapterLoaded:
        """Loads an adapter for the waves that are sent later. The answer says whether it could. Raises
        `errors.WorkerUnavailable`."""

    def drop_adapter(self, message: DropAdapter) -> None:
        """Forgets an adapter behind the waves that were sent. Nothing happens when there is no worker."""

    async def restart(self) -> Ready:
        """Ends the worker if it still runs, and starts anew."""

    async def close(self) -> None:
        """Ends the worker and frees everything held. May be called twice."""


class ModelRunner(Protocol):
    """What a worker is inside: `pie_inference.serving.worker.Worker` and `fake_model.FakeModel` are such objects."""

    def describe(self) -> tuple[ModelDescription, ...]:
        """The models that `run` accepts."""

    def run(self, wave: RunWave) -> WaveDone:
        """Runs the batches of a wave in order. What fails is told, not raised."""

    def load_adapter(self, message: LoadAdapter) -> AdapterLoaded:
        """Loads an adapter, or says why it cannot."""

    def drop_adapter(self, message: DropAdapter) -> None:
        """Forgets an adapter, if it is loaded."""


def differences(one: ModelDescription, other: ModelDescription) -> str:
    """In what two workers differ that are to serve one model; "": in nothing that matters."""
    names = [name for name in one.__struct_fields__ if name not in OWN]
    return ", ".join(name for name in names if getattr(one, name) != getattr(other, name))


def with_least(descriptions: Sequence[ModelDescription]) -> ModelDescription:
    """What all workers of one model have: the first one's description, with the smallest of their pools."""
    first, *others = descriptions
    least = {name: min(getattr(one, name) for one in descriptions) for name in POOLS}
    return replace(first, **least) if others else first
