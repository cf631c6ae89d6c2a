"""What the HTTP server needs of the runtime. `pie_control.runtime.Runtime` is one; tests bring their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pie_control.inferlets.events import Event, LogLine
from pie_control.inferlets.inferlet import InferletInfo
from pie_control.programs.store import ProgramInfo
from pie_inference.protocol import ModelDescription

Listener = Callable[[Event], None]


class HostedInferlet(Protocol):
    """One inferlet, as its client sees it."""

    id: str

    def info(self) -> InferletInfo:
        """What can be told of it now."""

    def send(self, text: str) -> None:
        """A message for its `receive`; raises Conflict if it has ended, Overloaded if it does not keep up."""

    def logs(self) -> tuple[LogLine, ...]:
        """The log lines that are kept."""

    def attach(self, listener: Listener) -> None:
        """Sends events to the one listener, those that nobody has heard first."""

    def detach(self) -> None:
        """Keeps events again, within bounds."""


class InferletHost(Protocol):
    """Programs and inferlets of one server. Errors are those of `pie_control.errors`."""

    async def upload(self, data: bytes, name: str) -> ProgramInfo:
        """Stores a program; raises BadProgram."""

    def programs(self) -> tuple[ProgramInfo, ...]:
        """All programs."""

    async def launch(
        self,
        program: str,
        arguments: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        listener: Listener | None = None,
    ) -> HostedInferlet:
        """Starts an inferlet; raises UnknownName, Overloaded, WorkerUnavailable."""

    def inferlet(self, id: str, /) -> HostedInferlet:
        """A running or recently ended inferlet; raises UnknownName."""

    def inferlets(self) -> tuple[InferletInfo, ...]:
        """Running and recently ended inferlets."""

    def terminate(self, id: str, reason: str, /) -> None:
        """Ends an inferlet; raises UnknownName."""

    def models(self) -> tuple[ModelDescription, ...]:
        """What the workers serve."""

    def statistics(self) -> Any:
        """A dataclass of numbers."""
