"""Random programs that are written down, with what each call must be answered with, for a guest that makes the calls
(played_calls.py).

What happens by chance when a program runs, it is made independent of: a run that was cancelled leaves pages that are
emptied, and what is imported may be gone, which ends the program.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from pie_control.calls import CALLS
from pie_control.ids import REFERENCE_BIT
from pie_control.resources.kinds import PAGES as PAGE_POOL
from pie_inference.protocol import ModelDescription
from tests.helpers.issue_order import Exported, IssueOrder
from tests.helpers.naive_sampler import Drawing
from tests.helpers.pictures import Picture
from tests.helpers.random_author import Author, flat
from tests.helpers.scheduling import GOES_ON
from tests.helpers.undecided import Undecided
from tests.helpers.wanted import Anything, Exactly, Wanted

ARGUMENTS = {
    "create_queue": "",
    "destroy_queue": "q",
    "alloc_kvpage": "qnn",
    "alloc_emb": "qn",
    "dealloc_kvpage": "qp",
    "dealloc_emb": "qe",
    "copy_kvpage": "qss",
    "copy_emb": "qee",
    "trim_kvpage": "qpn",
    "mask_kvpage": "qpr",
    "shift_kvpage": "qpn",
    "embed_txt": "qtne",
    "embed_img": "qinne",
    "set_positions": "qne",
    "forward": "qpepe",
    "forward_with_mask": "qpepem",
    "forward_with_adapter": "qnpepe",
    "forward_with_scores": "qpepe",
    "forward_with_adapter_and_scores": "qnpepe",
    "forward_with_dist": "qtneppenn",
    "forward_with_sampling": "qtneppek",
    GOES_ON: "qo",
    "sample": "qektbn",
    "get_next_dist": "qenn",
    "get_logprobs": "qen",
    "get_embedding": "qennn",
    "verify": "qenk",
    "decode": "qekenppnnj",
    "export_kvpage": "qnp",
    "import_kvpage": "qn",
    "synchronize": "q",
    "set_queue_priority": "qn",
}
"""The kinds of arguments of each call: q queue, p pages, e embeds, s slots, r places, m mask, t tokens and o one, k
sampler, i image, b bits of tokens, j options, n as it is."""


@dataclass
class Program:
    """Calls as JSON, and what they must be answered with."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    samplers: list[dict[str, Any]] = field(default_factory=list)
    images: list[Picture] = field(default_factory=list)
    wanted: dict[int, Wanted] = field(default_factory=dict)  # by future


class Recording:
    """Stands in for an inferlet: gives numbers, and writes down."""

    ending = None

    def __init__(self, program: Program, model: ModelDescription, adapters: Sequence[str]) -> None:
        self.program = program
        self.space = SimpleNamespace(model=model, adapters=dict.fromkeys(adapters, 0))
        self._counts: Counter[str] = Counter()
        self._samplers: dict[int, int] = {}  # places, by id
        self._kept: list[Drawing] = []

    def create_queue(self) -> int:
        return self.write("create_queue", (), True) or 0

    def destroy_queue(self, queue: int) -> None:
        self.write("destroy_queue", (queue,), True)

    def write(self, name: str, arguments: Sequence[Any], accepted: bool) -> int | None:
        """Gives the number of what the call makes, if it makes anything."""
        kinds = ARGUMENTS[name]
        given = [self._argument(kind, one) for kind, one in zip(kinds, arguments, strict=False)]
        step = {"call": name, "kinds": kinds, "arguments": given, "accepted": accepted}
        made = None
        if accepted:
            pool = next((pool for pool in ("kvpage", "emb") if name == f"alloc_{pool}"), None)
            if pool is not None:
                made = self._counts[pool]
                self._counts[pool] += arguments[1]
            elif name == "create_queue":
                self._counts["queue"] += 1
                made = self._counts["queue"]
            elif gives_future(name):
                self._counts["future"] += 1
                made = self._counts["future"]
        self.program.steps.append({**step, "made": made})
        return made

    def _argument(self, kind: str, value: Any) -> Any:
        if kind == "m":
            return _mask_rows(value)
        if kind in "pers" and not isinstance(value, int):
            return [first + n for first, count in zip(value[::2], value[1::2], strict=True) for n in range(count)]
        if kind == "k":
            return self._sampler(value)
        if kind == "i":
            return self._image(value)
        if kind == "t":
            return [_token(one) for one in value]
        return _token(value) if kind == "o" else value

    def _sampler(self, drawing: Drawing) -> int:
        if id(drawing) not in self._samplers:
            self._samplers[id(drawing)] = len(self._kept)
            self._kept.append(drawing)
            self.program.samplers.append(drawing.options)
        return self._samplers[id(drawing)]

    def _image(self, picture: Picture) -> int:
        images = self.program.images
        if picture not in images:
            images.append(picture)
        return images.index(picture)


READING = ("forward_with_dist", "forward_with_sampling", "forward_with_scores", "forward_with_adapter_and_scores")
"""Functions of the SDK over `forward` that give a future; alone it gives none."""


def gives_future(name: str) -> bool:
    return name in (*READING, GOES_ON) or (name != "forward" and name in CALLS and CALLS[name].value is not None)


def _token(value: int) -> Any:
    """A token, or {"future": number}."""
    return {"future": value - REFERENCE_BIT} if value >= REFERENCE_BIT else value


def _mask_rows(flat: Sequence[int]) -> list[list[int]]:
    rows, rest = [], list(flat)
    while rest:
        count = rest.pop(0)
        ranges, rest = rest[: 2 * count], rest[2 * count :]
        rows.append([first + n for first, length in zip(ranges[::2], ranges[1::2], strict=True) for n in range(length)])
    return rows


class RecordedAuthor(Author):
    """Writes down what it would call."""

    knows_grammars = False  # a worker of its own compiles them when they come
    composes = False

    def __init__(
        self,
        recording: Recording,
        choice: random.Random,
        means: IssueOrder,
        made: Counter[str],
        shared: dict[str, Exported],
        name: str,
        pictures: Sequence[Picture],
    ) -> None:
        """`shared`: what this program and others export, by name; `name`: of this program."""
        self.recording = recording
        self.name = name
        self.open: list[int] = []  # futures that were not awaited
        super().__init__(recording, choice, means, made, shared, lambda: None, pictures)  # type: ignore[arg-type]

    def attempt(self, accepted: bool, name: str, *arguments: Any) -> int | None:
        self.made[name if accepted else f"{name} refused"] += 1
        made = self.recording.write(name, arguments, accepted)
        if made is not None and gives_future(name):
            self.open.append(made)
        return made

    def step(self) -> None:
        super().step()
        if self.open and self.choice.random() < 0.1:
            self._await(self.choice.choice(self.open))

    def _await(self, future: int) -> None:
        if future in self.runs:
            self.means.end_run(self.runs[future].plan)
            self.embeds += self.runs.pop(future).embeds
        self.recording.program.steps.append({"await": future})
        self.open.remove(future)
        self.samples = [one for one in self.samples if one[0] != future]  # an awaited token is a number

    def end_a_run(self, queue: int) -> None:
        if not self.runs:
            return
        future = self.choice.choice(list(self.runs))
        if self.choice.random() < 0.6:
            self._await(future)
            return
        run = self.runs.pop(future)
        self.made["cancelled"] += 1
        self.recording.program.steps.append({"cancel": future, "pause": self.choice.choice([0, 1, 3])})
        self.open.remove(future)
        self.wanted[future] = Beginning(self.wanted[future])
        self.embeds += run.embeds
        emptied = [page for page in run.targets if page not in self.means.sealed]
        if emptied:  # nobody knows how far the run came
            assert self.means.trim_kvpage(emptied, 0)
            self.attempt(True, "trim_kvpage", queue, flat(emptied), 0)
        reserved = [page for page in emptied if page in self.means.unbound]
        if reserved:  # nor what of it has memory
            self.attempt(True, "dealloc_kvpage", queue, flat(reserved))
            self.means.forget(reserved, [])

    def export_kvpage(self, queue: int) -> None:
        pages = self.writable()
        if not pages:
            return
        pages, name = self.choice.sample(pages, 1), f"{self.name} {len(self.shared)}"
        exported = self.means.export_kvpage(pages)
        future = self.attempt(exported is not None, "export_kvpage", queue, name, flat(pages))
        if future is not None and exported is not None:
            self.shared[name] = exported
            self.wanted[future] = Anything()
            self._await(future)

    def import_kvpage(self, queue: int) -> None:
        names = list(self.shared)
        if not names:
            return
        name = self.choice.choice(names)
        slots = self.shared[name]
        if len(self.means.pages) + len(slots) > PAGE_POOL.pool_size(self.inferlet.space.model):
            return
        first = self.recording._counts["kvpage"]
        self.recording._counts["kvpage"] += len(slots)
        self.recording.program.steps.append({"import": name, "queue": queue, "made": first, "pages": len(slots)})
        self.means.import_kvpage(first, slots)
        self.made["imported"] += 1

    def finish(self) -> Program:
        """Awaits what is open."""
        for future in self.choice.sample(self.open, len(self.open)):
            self._await(future)
        program = self.recording.program
        program.wanted = self.wanted
        return program


@dataclass(frozen=True)
class Beginning:
    """Of the tokens of a run."""

    wanted: Any

    def check(self, value: Any, close: float) -> None:
        assert isinstance(self.wanted, Exactly)
        assert value == self.wanted.value[: len(value)], f"{value} is no beginning of {self.wanted.value}"


def record(
    seed: int,
    count: int,
    new_meaning: Callable[[], IssueOrder],
    model: ModelDescription,
    adapters: Sequence[str],
    made: Counter[str],
    pictures: Sequence[Picture],
    steps: int = 40,
) -> list[Program] | None:
    """Programs of `count` inferlets that run at a time; each may import what those before it export. None if a token
    is undecided."""
    choice, shared = random.Random(seed), dict[str, Exported]()
    programs = []
    for number in range(count):
        recording = Recording(Program(), model, adapters)
        try:
            author = RecordedAuthor(
                recording, random.Random(choice.random()), new_meaning(), made, shared, f"{seed} {number}", pictures
            )
            for _ in range(steps):
                author.step()
            programs.append(author.finish())
        except Undecided:
            return None
    return programs
