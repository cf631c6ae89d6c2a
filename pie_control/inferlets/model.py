"""A model as the inferlets of a host see it: its description, its tokenizer, and their address spaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pie_inference.protocol import ModelDescription

from ..calls.kind import Command
from ..calls.values import Completion
from ..errors import CallError, Unsupported, WorkerError
from ..ids import Owner
from ..resources.address_space import AddressSpace
from ..resources.quotas import Ledgers, Quota
from ..scheduling import Closed, Ending, Opened, Progress
from ..scheduling.turn import Note
from ..services.grammars import Grammars
from ..services.tokenizer import Tokenizer
from ..tenants.tenant import DEFAULT_STANDING, Standing

SpaceEvent = Opened | Closed | Command | Note
"""What inferlets do at a model."""


class ModelView:
    """What inferlets do at the model comes out of `take_events`, in order; `hear` takes what the scheduler says."""

    def __init__(self, description: ModelDescription, ledgers: Ledgers) -> None:
        """Raises ConfigError if the tokenizer cannot be read."""
        self.name = description.name
        self.description = description
        self.down: str | None = None  # why no worker serves it, now or soon
        self._info = ""
        self._adapters: dict[str, int] = {}  # numbers by name; address spaces see changes
        self._ledgers = ledgers
        self._spaces: dict[Owner, AddressSpace] = {}
        self._events: list[SpaceEvent] = []
        self.grammars = Grammars(description)
        self._tokenizer: Tokenizer | None = None
        if description.tokenizer:
            texts = description.tokenizer, description.tokenizer_config
            self._tokenizer = Tokenizer(*texts, description.vocab_size, description.max_context)

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises Unsupported if the model has none."""
        if self._tokenizer is None:
            raise Unsupported(f"model {self.name} has no tokenizer")
        return self._tokenizer

    @property
    def adapters(self) -> Sequence[str]:
        """Names of those that it has now, in the order in which they were loaded."""
        return tuple(self._adapters)

    @property
    def has_chat_template(self) -> bool:
        return self._tokenizer is not None and self._tokenizer.has_chat_template

    @property
    def frame(self) -> tuple[Sequence[int], Sequence[int]]:
        """Tokens that its tokenizer puts before and behind a text that is for the model."""
        return ((), ()) if self._tokenizer is None else self._tokenizer.frame

    # ---- for inferlets ----

    def info(self, make: Callable[[ModelView], str]) -> str:
        """The text about the model, which changes with its adapters: made once for all inferlets."""
        if not self._info:
            self._info = make(self)
        return self._info

    def open(
        self,
        owner: Owner,
        standing: Standing = DEFAULT_STANDING,
        lineage: Sequence[tuple[Owner, Quota]] = (),
    ) -> AddressSpace:
        """The address space of an inferlet that has none here. `lineage`: see `Ledgers.of`. Raises WorkerError if no
        worker serves the model, now or soon."""
        if self.down is not None:
            raise WorkerError(self.down)
        ledger = self._ledgers.of(owner, standing.tenant, lineage)
        space = self._spaces[owner] = AddressSpace(owner, self.description, ledger, self._hand_on, self._adapters)
        self._events.append(Opened(owner))
        return space

    def _hand_on(self, command: Command | Note) -> None:
        self._events.append(command)

    def release(self, owner: Owner) -> None:
        """Frees what an inferlet holds here. Nothing happens if it holds nothing."""
        if self._spaces.pop(owner, None) is not None:
            self._events.append(Closed(owner))

    # ---- for the host ----

    def set_adapters(self, adapters: Mapping[str, int]) -> None:
        """The adapters that can be named from now on."""
        self._adapters.clear()
        self._adapters.update(adapters)
        self._info = ""

    def take_events(self) -> Sequence[SpaceEvent]:
        """What happened since it was asked last."""
        if not self._events:
            return ()
        events, self._events = self._events, []
        return events

    def run_advanced(self, owner: Owner, future: int, tokens: Sequence[int], over: bool) -> bool:
        """Tokens of a decode run arrived; `over`: and it has ended. False if nobody wants them any more."""
        space = self._spaces.get(owner)
        return space is not None and space.run_advanced(future, tokens, over)

    def run_failed(self, owner: Owner, future: int, error: CallError) -> None:
        """A decode run failed."""
        if space := self._spaces.get(owner):
            space.answered(future, error)

    def hear(
        self,
        completions: Sequence[Completion],
        progress: Sequence[Progress],
        endings: Sequence[Ending],
        failed: Callable[[Owner, Exception], None],
    ) -> None:
        """Keeps address spaces up to date. `failed` hears of inferlets for which that could not be."""
        spaces = self._spaces
        for one in progress:
            if space := spaces.get(one.owner):
                try:
                    space.progressed(one.oldest, one.taken, one.returned, one.bound)
                except Exception as error:
                    failed(one.owner, error)
        for completion in completions:
            if space := spaces.get(completion.owner):
                try:
                    space.answered(completion.future, completion.value)
                except Exception as error:
                    failed(completion.owner, error)
        for ending in endings:
            if space := spaces.pop(ending.owner, None):
                space.end(ending.error)
