"""The command queues of the contexts of one model.

A queue is a place in line, and an inferlet may have few (256 by default). A context needs one only while it works, so
contexts take queues from here and give them back. As long as there are queues for all, each context has its own, and
comes back to it. Beyond, those that work go round; only when all are in use do contexts share one, which is right, as a
queue keeps the order of issue, but lets them run one behind the other. While a context lives, a few queues of those
that were closed are kept with their embeds: many programs make a context for each call of the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from inferlet_sdk import bindings, traits
from inferlet_sdk.addresses import Embeds
from inferlet_sdk.errors import Exhausted, QuotaExceeded
from inferlet_sdk.traits.arguments import text
from inferlet_sdk.traits.core import ModelInfo

KEPT_INPUTS = 32
"""Tokens of a forward whose inputs a queue keeps for the next one. If many contexts run a few tokens each, embeds for
each of them would be in use until all that was issued before has run.
"""

FEW = 8
"""Queues, or contexts that reserve pages, for which nobody asks what the limit is."""
ALL_PAGES = 1 << 32
"""More than there are."""

MANY_CONTEXTS = 128
"""Beyond this number contexts do not keep spare pages."""


KEPT_QUEUES = 4
"""Queues of closed contexts that are kept for the next ones."""
DESTROYED = -1
"""Users of a queue that is not there any more."""
PART_AHEAD = 4
"""Where there are many contexts, they reserve one part in this many of all pages."""


class Queue:
    """A queue and the embeds for the inputs of short forwards, which its users fill and read in turn.

    `input` is the first of them, as a range: that of single tokens. `output`: an output embed of a closed context, as a
    range; empty if there is none. `users` is the number of contexts that work with it, or DESTROYED. `last_step`: the
    last step that gave a distribution, from which the next one can go on.
    """

    __slots__ = ("_embeds", "_queues", "input", "last_step", "number", "output", "users")

    def __init__(self, number: int, embed: Embeds, queues: Queues) -> None:
        self.number: int = number
        self.input: list[int] = list(embed.ranges)
        self.output: list[int] = []
        self.users = 0
        self.last_step: object | None = None
        self._embeds = embed
        self._queues = queues

    def inputs(self, count: int) -> Embeds:
        """Embeds for `count` tokens, at most KEPT_INPUTS."""
        missing = count - len(self._embeds)
        if missing > 0:
            self._embeds += self._queues.alloc_embeds(self.number, missing)
        return self._embeds[:count]

    def give_inputs_back(self) -> None:
        """Keeps that of single tokens alone."""
        if len(self._embeds) > 1:
            traits.dealloc_emb(self.number, self._embeds[1:])
            self._embeds = self._embeds[:1]

    def take_output(self) -> list[int]:
        """An output embed, as a range."""
        output, self.output = self.output, []
        return output or list(self._queues.alloc_embeds(self.number, 1).ranges)

    def destroy(self) -> None:
        """Gives all back to the host."""
        self.users = DESTROYED
        traits.dealloc_emb(self.number, self._embeds + Embeds(self.output))
        traits.destroy_queue(self.number)


class Queues:
    """The queues of all contexts of a model. At most three quarters of those that the inferlet may have: the program
    may want some for itself."""

    def __init__(self, info: ModelInfo, host: object) -> None:
        self.info = info
        self.host = host  # `bindings.host`, whose queues these are
        self.contexts = 0
        self.imports: set[int] = set()  # futures of exports that are being opened
        self.scarce = False  # whether a context has found no queue that it could have for itself
        self._queues: dict[Queue, None] = {}  # once they are scarce, the one that was given back first comes first
        self._kept: list[Queue] = []  # of closed contexts; another one may have taken it since, or it was destroyed
        self._greedy = 0
        self._most: int | None = None
        self._most_pages: int | None = None

    # ---- contexts ----

    def join(self) -> None:
        """A context begins to live."""
        self.contexts += 1

    def leave(self, queue: Queue | None = None) -> None:
        """A context ends that has used a queue; of what the others cannot use, a few are kept."""
        self.contexts -= 1
        if queue is not None and queue.users == 0:
            self._kept.append(queue)
        most = self.contexts + KEPT_QUEUES if self.contexts else 0
        while len(self._queues) > most and (idle := self._first_idle()) is not None:
            self._destroy(idle)
        if self._greedy and not self.contexts:
            traits.destroy_sampler(self._greedy)
            self._greedy = 0

    # ---- work ----

    def take(self, before: Queue | None) -> Queue:
        """A queue to work with, until `give`: the one used before if it is idle, else one of a closed context, or a new
        one if there may be more, else the one that has been idle longest, else the one with the fewest users.
        """
        if before is not None and before.users == 0:
            queue = before
        else:
            queue = self._try_kept() or self._try_create() or self._least_used()
        queue.users += 1
        return queue

    def give(self, queue: Queue | None) -> None:
        """A context does not work any more."""
        assert queue is not None
        queue.users -= 1
        if self.scarce and queue.users == 0:
            del self._queues[queue]
            self._queues[queue] = None

    def own(self) -> Queue:
        """A queue that is never shared; its holder destroys it."""
        try:
            queue = self._create()
        except (QuotaExceeded, Exhausted):
            idle = self._first_idle()
            if idle is None:
                raise
            self._destroy(idle)
            queue = self._create()
        queue.users = 1
        return queue

    def try_part_with(self, queue: Queue) -> bool:
        """Leaves a queue to its only user, as if it were from `own`; False if it has more users."""
        if queue.users > 1:
            return False
        del self._queues[queue]
        return True

    @contextmanager
    def some(self) -> Iterator[int]:
        """The number of any queue, for what has no order: to give back, to tokenize."""
        self.join()
        try:
            queue = next(iter(self._queues), None)
            if queue is None:
                queue = self._create_shared()
            yield queue.number
        finally:
            self.leave()

    def greedy(self) -> int:
        """The sampler of the host that takes the most probable token, as long as contexts live."""
        if not self._greedy:
            self._greedy = traits.create_sampler(temperature=0.0)
        return self._greedy

    def alloc_embeds(self, queue: int, count: int, least: int | None = None) -> Embeds:
        """`count` embeds, or fewer, but no fewer than `least`, if it is given. Those that were given back count until
        what was issued before has run: so where there are too few, waits for that. Raises QuotaExceeded, Exhausted."""
        lacking: Exception | None = None
        for asked in self._attempts(queue, count, count if least is None else min(count, least)):
            try:
                return traits.alloc_emb(queue, asked)
            except (QuotaExceeded, Exhausted) as error:
                lacking = error
        assert lacking is not None
        raise lacking

    def _attempts(self, queue: int, count: int, least: int) -> Iterator[int]:
        """How many to ask for, one number after the other; between them, waits for what the queue has. In the end each
        of the others gives back what it keeps, if nobody works with it, and is waited for."""
        yield count
        traits.synchronize(queue).result()
        yield count
        while count > least:
            count = max(count // 2, least)
            yield count
        for other in list(self._queues):
            if other.users != DESTROYED:
                if other.users == 0:
                    other.give_inputs_back()
                traits.synchronize(other.number).result()
                yield count

    def most_pages_ahead(self) -> int:
        """Pages that a context may reserve for a run: many contexts together should leave most of them to others."""
        if self.contexts <= FEW:
            return ALL_PAGES
        if self._most_pages is None:
            self._most_pages = traits.usage().max_pages
        return max(self._most_pages // (PART_AHEAD * self.contexts), 1)

    # ---- queues ----

    def _try_kept(self) -> Queue | None:
        while self._kept:
            if (queue := self._kept.pop()).users == 0:
                return queue
        return None

    def _try_create(self) -> Queue | None:
        """None if there are enough; raises QuotaExceeded, Exhausted if there is none at all."""
        count = len(self._queues)
        if count >= self.contexts or (count >= FEW and count >= self._limit()):
            return None
        try:
            return self._create_shared()
        except (QuotaExceeded, Exhausted):
            if not self._queues:
                raise
            return None

    def _limit(self) -> int:
        if self._most is None:
            self._most = traits.usage().max_queues * 3 // 4
        return self._most

    def _first_idle(self) -> Queue | None:
        return next((queue for queue in self._queues if queue.users == 0), None)

    def _least_used(self) -> Queue:
        self.scarce = True
        return self._first_idle() or min(self._queues, key=lambda queue: queue.users)

    def _create_shared(self) -> Queue:
        queue = self._create()
        self._queues[queue] = None
        return queue

    def _create(self) -> Queue:
        number = traits.create_queue(self.info.name)
        try:
            return Queue(number, traits.alloc_emb(number), self)
        except BaseException:
            traits.destroy_queue(number)
            raise

    def _destroy(self, queue: Queue) -> None:
        del self._queues[queue]
        queue.destroy()


_known: dict[str, Queues] = {}


def queues_of(model: str) -> Queues:
    """What all contexts of a model share; of its name, or what `Context.model` gives."""
    name = text(getattr(model, "name", model), "model")
    queues = _known.get(name)
    if queues is None or queues.host is not bindings.host:
        queues = _known[name] = Queues(traits.get_model_info(name), bindings.host)
    return queues
