"""The demo model's knowledge of everyday things, as tables for the chat data.

Each `Fact` has ways to ask, a full answer and a short answer (one or two words), so that a system prompt can ask for either.
"""

# ruff: noqa: E501, SIM905 - tables of words and templates read best one entry a line
from __future__ import annotations

from dataclasses import dataclass

from examples.demo_model.world import ADULTS, ANIMALS, PLACE_BY_NAME, VILLAGE, article


@dataclass(frozen=True)
class Fact:
    """`ask`: a template of questions; `full` and `short`: the answer as a sentence and in a word or two."""

    ask: str
    full: str
    short: str


COLOUR_OF = {
    "the sky": "blue", "grass": "green", "the sun": "yellow", "snow": "white", "a lemon": "yellow", "a tomato": "red",
    "coal": "black", "a carrot": "orange", "milk": "white", "blood": "red", "chocolate": "brown", "the night sky": "black",
    "a banana": "yellow", "a cloud": "white", "a ripe strawberry": "red", "a leaf": "green", "a crow": "black",
}  # fmt: skip
SOUND_OF = {
    "dog": "woof", "cat": "meow", "cow": "moo", "duck": "quack", "sheep": "baa", "owl": "hoo", "pig": "oink", "bee": "buzz",
    "mouse": "squeak", "horse": "neigh", "frog": "ribbit", "goose": "honk",
}  # fmt: skip
LEGS_OF = {"dog": "four", "cat": "four", "bird": "two", "spider": "eight", "bee": "six", "horse": "four", "snake": "no",
           "duck": "two", "cow": "four", "ant": "six", "goat": "four", "hen": "two"}  # fmt: skip
HOME_OF = {"bird": "a nest", "bee": "a hive", "fish": "the water", "rabbit": "a burrow", "spider": "a web", "fox": "a den",
           "horse": "a stable", "ant": "an anthill", "bear": "a cave", "frog": "a pond"}  # fmt: skip
BABY_OF = {"dog": "puppy", "cat": "kitten", "cow": "calf", "sheep": "lamb", "duck": "duckling", "horse": "foal",
           "hen": "chick", "goat": "kid", "pig": "piglet", "fox": "cub"}  # fmt: skip
JOBS = {
    "baker": "bakes bread and cakes", "miller": "grinds grain into flour", "fisherman": "catches fish",
    "librarian": "looks after books", "carpenter": "makes things out of wood", "teacher": "teaches children",
    "postman": "brings letters and parcels", "gardener": "takes care of plants", "blacksmith": "makes things out of iron",
    "innkeeper": "gives guests food and a bed", "shepherd": "looks after sheep", "doctor": "helps sick people",
    "clockmaker": "makes and mends clocks", "painter": "paints pictures", "weaver": "makes cloth",
    "ferryman": "takes people across the river", "farmer": "grows food", "cook": "prepares meals", "tailor": "makes clothes",
    "sailor": "works on a ship", "singer": "sings songs", "nurse": "cares for sick people", "builder": "builds houses",
    "pilot": "flies planes",
}  # fmt: skip
OPPOSITES = (
    "big small,hot cold,day night,up down,happy sad,fast slow,old young,wet dry,open closed,light dark,long short,"
    "early late,full empty,loud quiet,hard soft,left right,high low,good bad,rich poor,strong weak,clean dirty,near far"
)
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
SEASON_FACTS = {
    "spring": "flowers open and birds build nests",
    "summer": "the days are long and warm",
    "autumn": "the leaves fall and apples are ripe",
    "winter": "it is cold and snow may fall",
}
MATERIAL_OF = {"bread": "flour", "butter": "milk", "a window": "glass", "a book": "paper", "cheese": "milk", "a horseshoe": "iron",
               "a table": "wood", "wine": "grapes", "a sweater": "wool", "jam": "fruit", "a candle": "wax"}  # fmt: skip
USE_OF = {
    "an umbrella": "keep dry in the rain", "a key": "open a lock", "a spoon": "eat soup", "a broom": "sweep the floor",
    "a clock": "see what time it is", "a lamp": "make light", "a pencil": "write and draw", "a boat": "cross the water",
    "a needle": "sew cloth", "a map": "find the way", "a hammer": "drive in nails", "a cup": "drink tea",
    "scissors": "cut paper", "a ladder": "reach high places", "a rope": "tie things together", "a spade": "dig a hole",
}  # fmt: skip


def _tables() -> list[Fact]:
    facts = [
        Fact(f"[What colour is|What color is|Tell me the colour of] {x}[?|, please?]", f"{x} is {y}.", y)
        for x, y in COLOUR_OF.items()
    ]
    facts += [
        Fact(
            f"What sound does {article(x)} {x} make?|What does {article(x)} {x} say?",
            f'{article(x)} {x} says "{y}".',
            y,
        )
        for x, y in SOUND_OF.items()
    ]
    facts += [
        Fact(f"How many legs does {article(x)} {x} have?", f"{article(x)} {x} has {y} legs.", y)
        for x, y in LEGS_OF.items()
    ]
    facts += [
        Fact(f"Where does {article(x)} {x} live?", f"{article(x)} {x} lives in {y}.", f"in {y}")
        for x, y in HOME_OF.items()
    ]
    facts += [Fact(f"What is a baby {x} called?|What do you call a young {x}?", f"A baby {x} is called a {y}.", y)
              for x, y in BABY_OF.items()]  # fmt: skip
    facts += [Fact(f"What does {article(x)} {x} do?|What is the job of {article(x)} {x}?", f"{article(x)} {x} {y}.", y)
              for x, y in JOBS.items()]  # fmt: skip
    facts += [Fact(f"Who {y}?", f"{article(x)} {x} {y}.", f"{article(x)} {x}") for x, y in JOBS.items()]
    facts += [
        Fact(f"What is {x} made of?|What do you need to make {x}?", f"{x} is made of {y}.", y)
        for x, y in MATERIAL_OF.items()
    ]
    facts += [
        Fact(f"What can you do with {x}?|What is the use of {x}?|Why do people need {x}?", f"With {x}, you can {y}.", y)
        for x, y in USE_OF.items()
    ]
    facts += [
        Fact(f"What happens in {x}?|What is {x} like?|Tell me about {x}.", f"In {x}, {y}.", y)
        for x, y in SEASON_FACTS.items()
    ]
    for pair in OPPOSITES.split(","):
        x, y = pair.split()
        for one, other in ((x, y), (y, x)):
            facts.append(
                Fact(
                    f'What is the opposite of "{one}"?|What is the opposite of {one}?',
                    f"The opposite of {one} is {other}.",
                    other,
                )
            )
    return facts


def _calendar() -> list[Fact]:
    facts = []
    for names, kind in ((DAYS, "day"), (MONTHS, "month")):
        for index, name in enumerate(names):
            after, before = names[(index + 1) % len(names)], names[index - 1]
            facts.append(Fact(f"[What|Which] {kind} comes after {name}?", f"{after} comes after {name}.", after))
            facts.append(Fact(f"[What|Which] {kind} comes before {name}?", f"{before} comes before {name}.", before))
    return [
        *facts,
        Fact("How many days are in a week?|How many days does a week have?", "A week has seven days.", "seven"),
        Fact("How many months are in a year?|How many months does a year have?", "A year has twelve months.", "twelve"),
        Fact(
            "How many seasons are there?|What are the seasons?",
            "There are four seasons: spring, summer, autumn and winter.",
            "four",
        ),
        Fact("What does the sun do?|Why is it warm in the sun?", "The sun gives light and warmth.", "light and warmth"),
        Fact("When do we see the moon?|When does the moon shine?", "We see the moon at night.", "at night"),
        Fact("What falls from the clouds?|Where does rain come from?", "Rain falls from the clouds.", "rain"),
        Fact(
            "What do plants need?|What does a plant need to grow?",
            "Plants need water, light and earth.",
            "water, light and earth",
        ),
        Fact("What do bees make?|Which animal makes honey?|Who makes honey?", "Bees make honey.", "honey from bees"),
        Fact("What do cows give us?|Where does milk come from?", "Cows give us milk.", "milk from cows"),
        Fact("What do sheep give us?|Where does wool come from?", "Sheep give us wool.", "wool from sheep"),
    ]


def _village() -> list[Fact]:
    facts = [
        Fact("What is the name of the village?|Where do the stories happen?|In which village do you know your way?",
             f"The village is called {VILLAGE}.", VILLAGE),
        Fact(f"What is {VILLAGE}?|Tell me about {VILLAGE}.|Do you know {VILLAGE}?",
             f"{VILLAGE} is a small village by a river, with a mill, a bakery, a school and a market square.", "a small village"),
        Fact(f"Who lives in {VILLAGE}?|Name some people from {VILLAGE}.",
             f"Rosa the baker, Otto the miller, Nora the teacher and many others live in {VILLAGE}.", "Rosa, Otto, Nora and many others"),
    ]  # fmt: skip
    for who in ADULTS:
        where = PLACE_BY_NAME[who.place].at
        facts += [
            Fact(f"Who is {who}?|Tell me about {who}.|What is {who}'s job?", f"{who} is the {who.kind} of {VILLAGE}.", f"the {who.kind}"),
            Fact(f"Who is the {who.kind}[ of {VILLAGE}| in {VILLAGE}|]?|What is the {who.kind} called?|Do you know the {who.kind}?",
                 f"The {who.kind} of {VILLAGE} is {who}.", who.name),
            Fact(f"Where does {who} work?|Where can I find {who}?|Where is {who}[| the {who.kind}]?",
                 f"{who} the {who.kind} works {where}.", where),
            Fact(f"What does {who} do?", f"{who} is {article(who.kind)} {who.kind} and {JOBS[who.kind]}.", JOBS[who.kind]),
        ]  # fmt: skip
    for pet in ANIMALS:
        where = PLACE_BY_NAME[pet.place].at
        facts += [
            Fact(f"Who is {pet}?|What is {pet}?|Tell me about {pet}.|What kind of animal is {pet}?",
                 f"{pet} is {article(pet.kind)} {pet.kind} from {VILLAGE}.", f"{article(pet.kind)} {pet.kind}"),
            Fact(f"Where does {pet} live?|Where can I find {pet}?|Where is {pet}?", f"{pet} lives {where}.", where),
        ]  # fmt: skip
    return facts


FACTS: tuple[Fact, ...] = tuple(_tables() + _calendar() + _village())

# Yes-or-no questions: subject, verb phrase, true or false.
CLAIMS: tuple[tuple[str, bool], ...] = tuple(
    [(f"{x} is {y}", True) for x, y in COLOUR_OF.items()]
    + [(f"{x} is {'purple' if y != 'white' else 'black'}", False) for x, y in COLOUR_OF.items()]
    + [(f"{article(x)} {x} has {y} legs", True) for x, y in LEGS_OF.items()]
    + [(f"{article(x)} {x} has {'nine' if y != 'two' else 'five'} legs", False) for x, y in LEGS_OF.items()]
    + [(f"{article(x)} {x} {y}", True) for x, y in JOBS.items()]
    + [
        (f"{article(x)} {x} {z}", False)
        for x, z in zip(JOBS, [*list(JOBS.values())[5:], *list(JOBS.values())[:5]], strict=True)
    ]
    + [(f"{who} is the {who.kind}", True) for who in ADULTS]
    + [(f"{who} is the {other.kind}", False) for who, other in zip(ADULTS, (*ADULTS[3:], *ADULTS[:3]), strict=True)]
)
