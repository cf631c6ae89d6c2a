"""What there is to know: who is whose friend, who owns what, and what the demo model knows of everyday things.

A relation leads from each entity of one kind to one of another kind, by a hash of the seed. So a question can be a
chain of look-ups of any length, and a world may have relations that nobody has thought of.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from examples.demo_model.knowledge import FACTS
from examples.demo_model.world import ADULTS, ANIMALS, CHILDREN, COLOURS, PLACES, THING_NOUNS, article

PERSON, ANIMAL, PLACE, THING = "person", "animal", "place", "thing"
MOST_LOOK_UPS = 8
FOUND = 8
"""Pages that a search names."""

_WORD = re.compile(r"[a-z0-9]+")
_EMPTY = frozenset("a an and are can do does how in is it of on the to what which who you".split())  # noqa: SIM905
_HOLES = re.compile(r"\[([^\[\]]*)\]")
_NAME = re.compile(r"[a-z][a-z_]{0,39}")


@dataclass(frozen=True)
class Relation:
    """`name` leads from an entity of the kind `of` to one of the kind `to`."""

    name: str
    of: str
    to: str

    @property
    def words(self) -> str:
        return self.name.replace("_", " ")


RELATIONS = (
    Relation("friend", PERSON, PERSON),
    Relation("neighbour", PERSON, PERSON),
    Relation("teacher", PERSON, PERSON),
    Relation("cousin", PERSON, PERSON),
    Relation("helper", PERSON, PERSON),
    Relation("pet", PERSON, ANIMAL),
    Relation("keeper", ANIMAL, PERSON),
    Relation("home", PERSON, PLACE),
    Relation("caretaker", PLACE, PERSON),
    Relation("owner", THING, PERSON),
)


@dataclass(frozen=True)
class LookUp:
    """One step of a chain: what `relation` gives for `subject`."""

    relation: str
    subject: str
    result: str


@dataclass(frozen=True)
class Question:
    """A question, the look-ups that lead to its answer, in order, and the answer."""

    text: str
    steps: Sequence[LookUp]

    @property
    def answer(self) -> str:
        return self.steps[-1].result


class Village:
    """The village of one seed. `more`: names of further relations, from person to person."""

    def __init__(self, seed: int = 0, more: Iterable[str] = ()) -> None:
        """Raises ValueError for a name that is none, or of a relation that is there."""
        self.seed = seed
        self.relations: dict[str, Relation] = {one.name: one for one in RELATIONS}
        for name in more:
            if _NAME.fullmatch(name) is None or name in self.relations:
                raise ValueError(f"{name!r} cannot be a relation: take a new name of small letters, as in godmother")
            self.relations[name] = Relation(name, PERSON, PERSON)
        draw = random.Random(seed)
        nouns = sorted(THING_NOUNS)
        draw.shuffle(nouns)
        self.entities: Mapping[str, Sequence[str]] = {
            PERSON: [one.name for one in (*ADULTS, *CHILDREN)],
            ANIMAL: [one.name for one in ANIMALS],
            PLACE: [one.name for one in PLACES],
            THING: [f"{draw.choice(COLOURS)} {noun}" for noun in nouns],
        }
        self._names = {name.lower(): (kind, name) for kind, names in self.entities.items() for name in names}

    def look_up(self, relation: str, subject: str) -> str:
        """What a relation gives. Raises LookupError, which says what there is."""
        found = self.relations.get(relation)
        if found is None:
            raise LookupError(f"there is no relation {relation!r}: there are {', '.join(self.relations)}")
        kind, name = self._names.get(_bare(subject), ("", ""))
        if kind != found.of:
            some = ", ".join(self.entities[found.of][:3])
            raise LookupError(f"no {found.of} is called {subject[:40]!r}: there are {some} and others")
        others = [one for one in self.entities[found.to] if one != name]
        return others[self.number(relation, name) % len(others)]

    def number(self, *words: object) -> int:
        """A number that the seed and these words give, always the same one."""
        digest = hashlib.blake2b(" ".join(map(str, (self.seed, *words))).encode(), digest_size=8).digest()
        return int.from_bytes(digest)

    def question(self, draw: random.Random, look_ups: int, relations: Sequence[str] = ()) -> Question:
        """A question of so many look-ups, by these relations or by all. No person is met twice. Raises ValueError if
        they allow no chain of that length."""
        if not 1 <= look_ups <= MOST_LOOK_UPS:
            raise ValueError(f"{look_ups} look-ups are none of 1 to {MOST_LOOK_UPS}")
        usable = [self.relations[name] for name in relations or self.relations]
        for _ in range(1000):
            kind = draw.choice([one.of for one in usable])
            subject = start = draw.choice(self.entities[kind])
            steps: list[LookUp] = []
            while len(steps) < look_ups and (ways := [one for one in usable if one.of == kind]):
                way = draw.choice(ways)
                steps.append(LookUp(way.name, subject, self.look_up(way.name, subject)))
                subject, kind = steps[-1].result, way.to
            if len({start, *(step.result for step in steps)}) == look_ups + 1:
                return Question(self.ask(steps), steps)
        raise ValueError(f"no chain of {look_ups} look-ups leads through {', '.join(one.name for one in usable)}")

    def ask(self, steps: Sequence[LookUp]) -> str:
        """The question of a chain: the last relation stands first."""
        last = self.relations[steps[-1].relation]
        subject = steps[0].subject
        if self.relations[steps[0].relation].of in (PLACE, THING):
            subject = f"the {subject}"
        chain = " of ".join(f"the {self.relations[step.relation].words}" for step in reversed(steps))
        return f"{'Who' if last.to == PERSON else 'What'} is {chain} of {subject}?"

    # ---- pages ----

    @cached_property
    def pages(self) -> Mapping[str, str]:
        """Texts by title: a page for each entity, and one for each everyday fact."""
        found = {name: self._page(kind, name) for kind, names in self.entities.items() for name in names}
        for fact in FACTS:
            title = _first(fact.ask).rstrip("?.")
            found.setdefault(title, fact.full[:1].upper() + fact.full[1:])
        return found

    def _page(self, kind: str, name: str) -> str:
        beings = {one.name: one for one in (*ADULTS, *CHILDREN, *ANIMALS)}
        the = f"the {name}" if kind in (PLACE, THING) else name
        what = f"{name} is {article(beings[name].kind)} {beings[name].kind}. " if name in beings else ""
        told = [
            f"The {one.words} of {the} is {'the ' * (one.to == PLACE)}{self.look_up(one.name, name)}."
            for one in self.relations.values()
            if one.of == kind
        ]
        return what + " ".join(told)

    def page(self, title: str) -> str:
        """The text of a page. Raises LookupError."""
        by_title = {_bare(name): text for name, text in self.pages.items()}
        if _bare(title) not in by_title:
            raise LookupError(f"there is no page {title[:40]!r}: search for one")
        return by_title[_bare(title)]

    def search(self, query: str) -> list[str]:
        """Titles of pages with words of the query, the best first: words in the title count four times."""
        words = _words(query)
        found = {
            title: 4 * len(words & _words(title)) + len(words & _words(text)) for title, text in self.pages.items()
        }
        scores = {title: score for title, score in found.items() if score}
        return sorted(scores, key=lambda title: (-scores[title], len(title), title))[:FOUND]


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower())) - _EMPTY


def _bare(name: str) -> str:
    return name.strip().lower().removeprefix("the ")


def _first(template: str) -> str:
    """The first of the ways to ask that a template has."""
    while found := _HOLES.search(template):
        template = template.replace(found[0], found[1].split("|")[0], 1)
    return template.split("|")[0]
