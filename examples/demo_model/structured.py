"""Chat skill: one flat JSON object, taken from a sentence, from the world or made up."""

# ruff: noqa: E501, SIM905 - tables of words and templates read best one entry a line
from __future__ import annotations

import json
import random
from dataclasses import dataclass

from examples.demo_model.grammar import capitalise, made_up_word
from examples.demo_model.stories import NUMBER_WORDS, join_words
from examples.demo_model.talk import Talk, person_name, place_name
from examples.demo_model.world import ADULTS, CITIES, COLOURS, HOBBIES, PLACE_BY_NAME, SIZES, THING_NOUNS, WORKERS

Record = dict[str, object]
PETS = "dog cat rabbit pony goat duck parrot hamster".split()


@dataclass(frozen=True)
class Described:
    """A record, whose first key names the person or thing, and the sentences that tell it."""

    record: Record
    text: str


def draw_person(rng: random.Random) -> Described:
    name = person_name(rng)
    values: dict[str, tuple[object, str]] = {
        "age": ((age := rng.randint(3, 90)), f"is {age} years old"),
        "city": ((city := place_name(rng, CITIES)), f"{rng.choice(('lives in', 'comes from'))} {city}"),
        "job": ((job := rng.choice(WORKERS)), f"works as a {job}"),
        "pet": ((pet := rng.choice(PETS)), f"has a {pet}"),
        "hobby": ((hobby := rng.choice(HOBBIES)), f"likes to {hobby}"),
        "colour": ((colour := rng.choice(COLOURS)), f"likes the colour {colour}"),
        "friend": ((friend := person_name(rng)), f"has a friend called {friend}"),
    }
    return _describe(rng, {"name": name}, name, values)


def draw_thing(rng: random.Random) -> Described:
    noun = rng.choice(THING_NOUNS) if rng.random() < 0.6 else made_up_word(rng)
    values: dict[str, tuple[object, str]] = {
        "colour": ((colour := rng.choice(COLOURS)), f"is {colour}"),
        "size": ((size := rng.choice(SIZES)), f"looks {size}"),
        "price": ((price := rng.randint(1, 99)), f"costs {price} coins"),
        "owner": ((owner := person_name(rng)), f"belongs to {owner}"),
        "place": ((place := rng.choice(list(PLACE_BY_NAME))), f"was found at the {place}"),
        "clean": ((clean := rng.random() < 0.5), "is clean" if clean else "is not clean"),
    }
    return _describe(rng, {"thing": noun}, f"the {noun}", values)


def _describe(rng: random.Random, named: Record, subject: str, values: dict[str, tuple[object, str]]) -> Described:
    """One to four of the values, told as "Mia is 9 years old and lives in Oslo. Mia has a dog." """
    keys = rng.sample(list(values), rng.randint(1, 4))
    parts = [values[key][1] for key in keys]
    cut = rng.randint(1, len(parts))
    sentences = [f"{subject} {join_words(group)}." for group in (parts[:cut], parts[cut:]) if group]
    return Described(named | {key: values[key][0] for key in keys}, capitalise(" ".join(sentences)))


def from_text(talk: Talk) -> None:
    """ "Mia is 9 and lives in Oslo." to JSON with named keys, sometimes with one key that the text does not mention."""
    rng = talk.rng
    described = (draw_person if rng.random() < 0.7 else draw_thing)(rng)
    record = described.record
    first, *others = record
    keys = others if rng.random() < 0.5 else rng.sample(others, rng.randint(1, len(others)))
    if rng.random() < 0.5:
        rng.shuffle(keys)
    keys = [first, *keys]
    if rng.random() < 0.12:
        missing = [key for key in ("age", "city", "job", "pet", "colour", "price") if key not in record]
        keys.append(rng.choice(missing))
    ask = talk.pick(
        "{told} Describe {s} as JSON with {k}.", "Write this as JSON with the keys {k}: {told}", "{told}\nJSON with {k}:",
        "Extract {k} as JSON: {told}", "{told} [Give|Write|Return] this as JSON with {k}.", told=described.text, s=record[first], k=", ".join(keys),
    )  # fmt: skip
    talk.exchange(ask, json.dumps({key: record.get(key) for key in keys}))


def from_world(talk: Talk) -> None:
    """A villager as JSON, from what the model knows."""
    who = talk.rng.choice(ADULTS)
    record = {"name": who.name, "job": who.kind, "place": who.place}
    keys = ["name", *talk.rng.sample(["job", "place"], talk.rng.randint(1, 2))]
    talk.exchange(talk.pick("Describe {s} as JSON with {k}.", "Describe {s} the {j} as JSON with {k}.", s=who, j=who.kind, k=", ".join(keys)),
                  json.dumps({key: record[key] for key in keys}))  # fmt: skip


def invented(talk: Talk) -> None:
    """A made-up person or thing as JSON."""
    record = (draw_person if talk.rng.random() < 0.6 else draw_thing)(talk.rng).record
    keys = list(record)
    if keys[0] == "name" and talk.rng.random() < 0.5:
        ask = talk.pick("Describe {s} as JSON with {k}.", s=record["name"], k=", ".join(keys))
    else:
        what = "person" if keys[0] == "name" else "thing"
        ask = talk.pick(
            "[Make up|Invent] a {w} as JSON with {k}.", "Write JSON for a {w} with {k}.", w=what, k=", ".join(keys)
        )
    talk.exchange(ask, json.dumps(record))


def counts(talk: Talk) -> None:
    """Counts in words to JSON numbers."""
    rng = talk.rng
    words = ["one", *NUMBER_WORDS]
    nouns = rng.sample(
        "apples nuts shells eggs coins carrots berries buttons pears flowers books cups".split(), rng.randint(2, 4)
    )
    numbers = [rng.randint(2, 10) for _ in nouns]
    told = join_words([f"{words[number - 1]} {noun}" for number, noun in zip(numbers, nouns, strict=True)])
    ask = talk.pick("There are {t}. Write the counts as JSON.", "Write the counts as JSON: {t}.", "{who} has {t}. Give the counts as JSON.",
                    t=told, who=person_name(rng))  # fmt: skip
    talk.exchange(ask, json.dumps(dict(zip(nouns, numbers, strict=True))))


def draw(talk: Talk) -> None:
    kind = talk.rng.random()
    (from_text if kind < 0.7 else from_world if kind < 0.8 else invented if kind < 0.92 else counts)(talk)
