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
from examples.demo_model.world import ADULTS, ANIMALS, CHILDREN, CITIES, PLACE_BY_NAME, PLACES, THING_NOUNS, article

PERSON, ANIMAL, PLACE, THING, CITY, NUMBER = "person", "animal", "place", "thing", "city", "number"
MOST_LOOK_UPS = 8
FOUND = 8
"""Pages that a search names."""

_WORD = re.compile(r"[a-z0-9]+")
_EMPTY = frozenset("a an and are can do does how in is it of on the to what which who you".split())  # noqa: SIM905
_HOLES = re.compile(r"\[([^\[\]]*)\]")
_WAYS = {PERSON: "called {}", ANIMAL: "called {}", CITY: "called {}", NUMBER: "of {}"}
_NAME = re.compile(r"[a-z][a-z_]{0,39}")


@dataclass(frozen=True)
class Relation:
    """`name` leads from an entity of the kind `of` to one of the kind `to`, or to a NUMBER from 1 to 99."""

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
    Relation("boss", PERSON, PERSON),
    Relation("doctor", PERSON, PERSON),
    Relation("pet", PERSON, ANIMAL),
    Relation("keeper", ANIMAL, PERSON),
    Relation("home", PERSON, PLACE),
    Relation("city", PERSON, CITY),
    Relation("caretaker", PLACE, PERSON),
    Relation("owner", THING, PERSON),
    Relation("price", THING, NUMBER),
    Relation("weight", THING, NUMBER),
    Relation("age", PERSON, NUMBER),
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
        self.entities: Mapping[str, Sequence[str]] = {
            PERSON: [one.name for one in (*ADULTS, *CHILDREN)],
            ANIMAL: [one.name for one in ANIMALS],
            PLACE: [one.name for one in PLACES],
            THING: THING_NOUNS,
            CITY: CITIES,
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
        if found.to == NUMBER:
            return str(1 + self.number(relation, name) % 99)
        others = [one for one in self.entities[found.to] if one != name]
        return others[self.number(relation, name) % len(others)]

    def number(self, *words: object) -> int:
        """A number that the seed and these words give, always the same one."""
        digest = hashlib.blake2b(" ".join(map(str, (self.seed, *words))).encode(), digest_size=8).digest()
        return int.from_bytes(digest)

    def question(self, draw: random.Random, look_ups: int, relations: Sequence[str] = ()) -> Question:
        """A question of so many look-ups about a person, by these relations or by all, each of them once. No name is
        met twice. Raises ValueError if they allow no chain of that length."""
        if not 1 <= look_ups <= MOST_LOOK_UPS:
            raise ValueError(f"{look_ups} look-ups are none of 1 to {MOST_LOOK_UPS}")
        usable = [self.relations[name] for name in relations or self.relations]
        for _ in range(1000):
            kind, subject = PERSON, draw.choice(self.entities[PERSON])
            names, steps, ways = {subject}, list[LookUp](), list(usable)
            while len(steps) < look_ups and (fitting := [one for one in ways if one.of == kind]):
                way = draw.choice(fitting)
                ways.remove(way)
                steps.append(LookUp(way.name, subject, self.look_up(way.name, subject)))
                subject, kind = steps[-1].result, way.to
                names.add(subject)
            if len(names) == look_ups + 1:
                return Question(self._ask(steps), steps)
        raise ValueError(f"no chain of {look_ups} look-ups leads through {', '.join(one.name for one in usable)}")

    def _ask(self, steps: Sequence[LookUp]) -> str:
        way = "".join(f"'s {self.relations[step.relation].words}" for step in steps)
        return f"What is {steps[0].subject}{way}?"

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
        """Short sentences, as the demo model can read them."""
        told, the = [], f"The {name}" if kind in (PLACE, THING) else name
        for one in (*ADULTS, *CHILDREN, *ANIMALS):
            if one.name == name:
                job = f" works as a {one.kind} {PLACE_BY_NAME[one.place].at}" if one in ADULTS else ""
                told.append(f"{name}{job or f' is {article(one.kind)} {one.kind}'}.")
        for relation in (one for one in self.relations.values() if one.of == kind):
            result = self.look_up(relation.name, name)
            how = PLACE_BY_NAME[result].at if relation.to == PLACE else _WAYS[relation.to].format(result)
            told.append(f"{the} has {article(relation.words)} {relation.words} {how}.")
        return " ".join(told)

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
