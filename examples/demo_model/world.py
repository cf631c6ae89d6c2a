"""The small world of the demo model: the village of Alderbrook, its people, animals, places and things."""

# ruff: noqa: E501, SIM905 - tables of words and templates read best one entry a line
from __future__ import annotations

from dataclasses import dataclass

VILLAGE = "Alderbrook"


@dataclass(frozen=True)
class Being:
    """A person or an animal. `kind` reads after an article: "girl", "baker", "brown dog"."""

    name: str
    gender: str
    kind: str
    place: str = ""
    busy: str = ""

    def __str__(self) -> str:
        return self.name

    @property
    def he(self) -> str:
        return "he" if self.gender == "m" else "she"

    @property
    def He(self) -> str:
        return self.he.capitalize()

    @property
    def him(self) -> str:
        return "him" if self.gender == "m" else "her"

    @property
    def his(self) -> str:
        return "his" if self.gender == "m" else "her"

    @property
    def His(self) -> str:
        return self.his.capitalize()


@dataclass(frozen=True)
class Place:
    """A place in the village; `at` says where one is there ("by the river")."""

    name: str
    at: str

    def __str__(self) -> str:
        return self.name

    @property
    def the(self) -> str:
        return f"the {self.name}"

    @property
    def to(self) -> str:
        return f"to the {self.name}"


@dataclass(frozen=True)
class Thing:
    """A thing that one can carry, with the one adjective that it has throughout a text."""

    noun: str
    adjective: str

    def __str__(self) -> str:
        return self.noun

    @property
    def a(self) -> str:
        return f"{article(self.adjective)} {self.adjective} {self.noun}"

    @property
    def the(self) -> str:
        return f"the {self.adjective} {self.noun}"

    @property
    def full(self) -> str:
        return f"{self.adjective} {self.noun}"

    @property
    def short(self) -> str:
        return f"the {self.noun}"


def article(word: str) -> str:
    return "an" if word[0].lower() in "aeiou" else "a"


ADULTS = (
    Being("Rosa", "f", "baker", "bakery", "carrying a tray of warm bread"),
    Being("Otto", "m", "miller", "mill", "loading sacks of flour onto a cart"),
    Being("Tom", "m", "fisherman", "river", "mending a fishing net"),
    Being("Greta", "f", "librarian", "library", "carrying a tall pile of books"),
    Being("Henrik", "m", "carpenter", "workshop", "sawing a long plank"),
    Being("Nora", "f", "teacher", "school", "cleaning the blackboard"),
    Being("Felix", "m", "postman", "post office", "sorting a bag of letters"),
    Being("Iris", "f", "gardener", "garden", "watering the roses"),
    Being("Bruno", "m", "blacksmith", "forge", "hammering a horseshoe"),
    Being("Olga", "f", "innkeeper", "inn", "stirring a big pot of soup"),
    Being("Walter", "m", "shepherd", "meadow", "counting his sheep"),
    Being("Lena", "f", "doctor", "clinic", "packing her medicine bag"),
    Being("Emil", "m", "clockmaker", "clock shop", "winding an old clock"),
    Being("Clara", "f", "painter", "old barn", "mixing bright paint"),
    Being("Wilma", "f", "weaver", "cottage", "weaving a soft blanket"),
    Being("Jonas", "m", "ferryman", "bridge", "tying up his boat"),
)

GIRLS = tuple(
    Being(name, "f", "girl") for name in "Mia Anna Ella Lily Zoe Ruby Ida Eva Maya Lucy Nina Ada Sofia Alma".split()
)
BOYS = tuple(
    Being(name, "m", "boy") for name in "Leo Ben Max Sam Finn Theo Noah Paul Oscar Jack Hugo Kai Tim Luka".split()
)
CHILDREN = GIRLS + BOYS

ANIMALS = (
    Being("Biscuit", "m", "brown dog", "bakery"),
    Being("Pepper", "f", "black cat", "library"),
    Being("Clover", "f", "white goat", "meadow"),
    Being("Nutmeg", "f", "small pony", "old barn"),
    Being("Pip", "m", "little sparrow", "garden"),
    Being("Hazel", "f", "red squirrel", "forest"),
    Being("Bramble", "m", "sleepy hedgehog", "garden"),
    Being("Puddle", "m", "yellow duck", "pond"),
    Being("Snowy", "f", "young lamb", "meadow"),
    Being("Rusty", "m", "shy fox", "forest"),
    Being("Shadow", "m", "grey owl", "old barn"),
    Being("Waffle", "m", "playful puppy", "inn"),
    Being("Hops", "m", "brown rabbit", "hill"),
    Being("Daisy", "f", "spotted cow", "meadow"),
)

PLACES = (
    Place("bakery", "at the bakery"),
    Place("mill", "at the mill"),
    Place("river", "by the river"),
    Place("library", "in the library"),
    Place("workshop", "in the workshop"),
    Place("school", "at the school"),
    Place("post office", "at the post office"),
    Place("garden", "in the garden"),
    Place("forge", "at the forge"),
    Place("inn", "at the inn"),
    Place("meadow", "in the meadow"),
    Place("clinic", "at the clinic"),
    Place("clock shop", "in the clock shop"),
    Place("old barn", "in the old barn"),
    Place("cottage", "at the cottage"),
    Place("bridge", "on the bridge"),
    Place("forest", "in the forest"),
    Place("pond", "by the pond"),
    Place("hill", "on the hill"),
    Place("market square", "in the market square"),
    Place("well", "by the well"),
    Place("old oak", "under the old oak"),
)
PLACE_BY_NAME = {place.name: place for place in PLACES}
_OUTDOORS = "river|garden|meadow|bridge|forest|pond|hill|well|market square|old oak"
OUTDOORS = tuple(PLACE_BY_NAME[name] for name in _OUTDOORS.split("|"))

THING_NOUNS = (
    "kite ball hat scarf basket lantern whistle drum book key ring bell boat doll cup blanket button coin flute map"
    " spoon wagon puppet feather ribbon compass jar box pencil shell marble umbrella"
).split()
COLOURS = "red blue green yellow white black brown purple orange silver golden pink grey".split()
SIZES = "small big old new shiny tiny wooden pretty round broken".split()
THING_ADJECTIVES = (*COLOURS, *(size for size in SIZES if size != "broken"))

FOODS = (
    "a loaf of bread|a basket of apples|a jar of honey|a bowl of soup|a piece of cheese|a bag of nuts|a cherry pie"
    "|a plum cake|a bag of carrots|a pot of jam|a plate of pancakes|a bunch of grapes|a honey cake|a basket of berries"
).split("|")

SEASONS = ("spring", "summer", "autumn", "winter")
HOBBIES = (
    "draw animals|sing songs|climb trees|read books|look at the stars|build small boats|bake cookies|play the flute"
    "|collect shells|watch birds|tell stories|paint pictures|run through the meadow|swim in the river|fly kites|plant seeds"
).split("|")
TRAITS = "kind brave curious clever cheerful quiet gentle careful friendly shy honest patient".split()

WORKERS = "baker miller carpenter teacher gardener weaver painter doctor singer tailor cook pilot nurse farmer".split()

CITIES = (
    "Oslo Paris Rome Berlin Madrid London Vienna Prague Lisbon Dublin Athens Cairo Tokyo Delhi Boston Chicago Lima"
    " Helsinki Warsaw Geneva Milan Toronto Sydney Kyoto Bergen Porto"
).split()
