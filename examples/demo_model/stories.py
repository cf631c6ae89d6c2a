"""Stories of Alderbrook: a cast, a plot and its telling.

`tell(rng)` returns a `Story` with its text, its summary and questions that the text answers. Who is where and who has what
stays the same through a story, because a plot takes both from the cast. `journey` and `counting` tell shorter tales that
track the place and the number of things step by step.
"""

# ruff: noqa: E501, SIM905 - tables of words and templates read best one entry a line
from __future__ import annotations

import random
from dataclasses import dataclass, replace

from examples.demo_model.grammar import fill
from examples.demo_model.more_plots import PLOTS
from examples.demo_model.plots import RULES, Plot
from examples.demo_model.world import (
    ADULTS,
    ANIMALS,
    CHILDREN,
    FOODS,
    HOBBIES,
    OUTDOORS,
    PLACE_BY_NAME,
    PLACES,
    SEASONS,
    THING_ADJECTIVES,
    THING_NOUNS,
    TRAITS,
    Being,
    Place,
    Thing,
)

NUMBER_WORDS = "two three four five six seven eight nine ten".split()

OPENINGS = (
    "Once upon a time, [in the village of Alderbrook|in a small village by a river|near a dark forest], there [lived|was] a {hero.kind} named {hero}.",
    "Once upon a time, there [was|lived] a {trait} {hero.kind} named {hero} [in Alderbrook|in a small village|in the village of Alderbrook].",
    "Once there was a {hero.kind} [named|called] {hero}, who [liked|loved] to {hobby}.",
    "One [morning|day|fine day|{season} morning], {hero} [woke up early|got up before the sun|looked out of the window|went outside].",
    "One {season} [day|afternoon], {hero} [had nothing to do|was in a good mood|went for a walk].",
    "In the village of Alderbrook, [everyone knew {hero}|there lived a {trait} {hero.kind} named {hero}].",
    "In the village, everyone [knew|liked] {hero}, [a {trait} {hero.kind}|because {hero.he} was so {trait}].",
    "It was [a {season} morning|a fine {season} day|early in the morning] in Alderbrook. {hero} [was already awake|was in a good mood].",
    "{hero} was a {trait} {hero.kind} who [liked|loved] to {hobby}.",
    "{hero} lived [in Alderbrook|in a small house {place.at}|near {place.the}] and [liked|loved] to {hobby}.",
    "Long ago, a {trait} {hero.kind} named {hero} lived [near {place.the}|in a small house {place.at}].",
    "This is the story of {hero}, a {trait} {hero.kind} from Alderbrook.",
    "There once was a {hero.kind} named {hero}. {hero.He} was {trait} and loved to {hobby}.",
    "Every {season}, {hero} [liked|loved] to {hobby}.",
    "Last {season}, [something happened to {hero}|{hero} had a small adventure]. {hero.He} was a {trait} {hero.kind}.",
    '"Hello, {hero}!" [called|said] {friend}. "[How are you|Are you well] today?" "[I am fine|Very well, thank you]," said {hero}.',
    "Hello, my dear friend, and listen. [This is a story about|I will tell you about] {hero}, a {trait} {hero.kind} from Alderbrook.",
)
MORE_OPENINGS = (
    "?{hero.He} was {trait2} and [always ready to help|liked by everyone|full of ideas].",
    "?{hero.His} best friend was {friend}.",
    "?<nature>",
)


@dataclass(frozen=True)
class Story:
    """A story; `topics` are words that a listener could have asked for."""

    text: str
    summary: str
    questions: tuple[tuple[str, str], ...]
    topics: tuple[str, ...]


@dataclass(frozen=True)
class Cast:
    """Distinct beings, places and things for one story: the slots of its templates (see `plots.py`)."""

    hero: Being
    friend: Being
    adult: Being
    adult2: Being
    work: Place
    pet: Being
    place: Place
    place2: Place
    out: Place
    out2: Place
    thing: Thing
    thing2: Thing
    food: str
    food2: str
    season: str
    hobby: str
    trait: str
    trait2: str
    number: str


def draw_cast(rng: random.Random, *, indoors: bool = False) -> Cast:
    """A random cast; `indoors`: the main adult works under a roof."""
    hero, friend = rng.sample(CHILDREN, 2)
    adults = [adult for adult in ADULTS if adult.name not in ("Felix", "Emil")]
    adult = rng.choice([who for who in adults if not indoors or PLACE_BY_NAME[who.place] not in OUTDOORS])
    adult2 = rng.choice([who for who in adults if who is not adult])
    out, out2 = rng.sample([place for place in OUTDOORS if place.name != adult.place], 2)
    taken = {out.name, out2.name, adult.place}
    place, place2 = rng.sample([place for place in PLACES if place.name not in taken], 2)
    noun, noun2 = rng.sample(THING_NOUNS, 2)
    adjective, adjective2 = rng.sample(THING_ADJECTIVES, 2)
    food, food2 = rng.sample(FOODS, 2)
    trait, trait2 = rng.sample([trait for trait in TRAITS if trait != "honest"], 2)
    return Cast(
        hero=hero,
        friend=friend,
        adult=adult,
        adult2=adult2,
        work=PLACE_BY_NAME[adult.place],
        pet=rng.choice(ANIMALS),
        place=place,
        place2=place2,
        out=out,
        out2=out2,
        thing=Thing(noun, adjective),
        thing2=Thing(noun2, adjective2),
        food=food,
        food2=food2,
        season=rng.choice(SEASONS),
        hobby=rng.choice(HOBBIES),
        trait=trait,
        trait2=trait2,
        number=rng.choice(NUMBER_WORDS),
    )


def tell(rng: random.Random, plot: Plot | None = None) -> Story:
    """One story with a random cast."""
    plot = plot or rng.choice(PLOTS)
    cast = draw_cast(rng, indoors=plot.name in ("storm", "snow", "helper"))
    if plot.name in ("seed", "snow"):
        cast = replace(cast, season="spring" if plot.name == "seed" else "winter")
    slots = vars(cast)
    strangers = plot.name == "new child"
    openings = [opening for opening in OPENINGS if not (strangers and "{friend}" in opening)]
    more = [line for line in MORE_OPENINGS if not (strangers and "{friend}" in line)]
    beats = [rng.choice(openings), *more, *plot.beats]
    paragraphs: list[list[str]] = [[]]
    for beat in beats:
        if beat == "¶":
            paragraphs.append([])
        elif not beat.startswith("?") or rng.random() < 0.5:
            paragraphs[-1].append(fill(rng, beat.removeprefix("?"), slots, RULES))
    return Story(
        text="\n\n".join(" ".join(paragraph) for paragraph in paragraphs),
        summary=fill(rng, plot.summary, slots),
        questions=tuple((fill(rng, ask, slots), fill(rng, answer, slots)) for ask, answer in plot.questions),
        topics=_topics(cast, plot),
    )


def _topics(cast: Cast, plot: Plot) -> tuple[str, ...]:
    """The words that a listener could have asked for: the hero, and other parts that the plot always names."""
    told = " ".join(beat for beat in plot.beats if not beat.startswith(("?", "<")))
    hero, friend, adult, pet, thing = cast.hero, cast.friend, cast.adult, cast.pet, cast.thing
    topics = [hero.name]
    if "{friend}" in told:
        topics.append(f"{hero} and {friend}")
    if "{pet}" in told:
        topics += [pet.name, f"{pet} the {pet.kind}"]
    if "{thing.a}" in told or "{thing.the}" in told:
        topics += [f"a {thing}".replace("a u", "an u"), thing.a]
    if "{adult}" in told:
        topics.append(f"{adult} the {adult.kind}")
    if plot.name in ("storm", "race", "letter", "boat", "clock", "map", "seed", "nest"):
        topics.append({"storm": "a storm", "race": "a race", "letter": "a letter", "boat": "a boat", "clock": "a clock",
                       "map": "a treasure", "seed": "a seed", "nest": "a bird"}[plot.name])  # fmt: skip
    return tuple(topics)


def journey(rng: random.Random) -> Story:
    """A short tale in which a child walks from place to place and picks things up and leaves them."""
    hero = rng.choice(CHILDREN)
    stops = rng.sample(PLACES, rng.randint(3, 5))
    bag: list[Thing] = []
    lines = [f"{hero} {rng.choice(('had an empty bag', 'took an empty bag', 'left the house with an empty bag'))}."]
    for index, stop in enumerate(stops):
        go = rng.choice(("went", "walked", "ran"))
        lead = "First" if index == 0 else rng.choice(("Then", "Next", "After that"))
        line = f"{lead}, {hero} {go} {stop.to}"
        if bag and rng.random() < 0.35:
            left = bag.pop(rng.randrange(len(bag)))
            lines.append(f"{line} and {rng.choice(('left', 'put down'))} {left.the} there.")
        else:
            found = Thing(rng.choice(THING_NOUNS), rng.choice(THING_ADJECTIVES))
            if any(found.noun == thing.noun for thing in bag):
                lines.append(f"{line} but found nothing.")
                continue
            bag.append(found)
            lines.append(f"{line} and {rng.choice(('found', 'picked up'))} {found.a}.")
    inside = join_words([thing.a for thing in bag]) if bag else "nothing"
    lines.append(f"In the end, {hero} was {stops[-1].at}, with {inside} in {hero.his} bag.")
    questions = (
        (f"Where is {hero} now?", f"{hero} is {stops[-1].at}."),
        (f"What is in {hero}'s bag?", f"There is {inside} in {hero}'s bag." if bag else f"{hero}'s bag is empty."),
        (f"Where did {hero} go first?", f"First, {hero} went {stops[0].to}."),
    )
    return Story(
        " ".join(lines), f"{hero} walked through the village and came {stops[-1].to}.", questions, (str(hero),)
    )


def counting(rng: random.Random) -> Story:
    """A short tale in which a number of things changes hands, small enough to count on fingers."""
    hero, friend = rng.sample(CHILDREN, 2)
    noun = rng.choice("apples nuts shells eggs coins carrots berries buttons pears flowers".split())
    words = ["no", "one", *NUMBER_WORDS]
    count = rng.randint(3, 6)
    lines = [f"{hero} had {words[count]} {noun}."]
    plural = noun
    for _ in range(rng.randint(1, 3)):
        change = rng.randint(1, 3)
        if count + change > 10 or (rng.random() < 0.5 and count >= change):
            count -= change
            lines.append(f"{hero} gave {words[change]} to {friend}.")
        else:
            count += change
            lines.append(f"{rng.choice((f'{friend} gave {hero}', f'Then {hero} found'))} {words[change]} more.")
        plural = noun if count != 1 else {"berries": "berry"}.get(noun, noun[:-1])
        lines.append(f"Now {hero} had {words[count]} {plural}.")
    ask = (f"How many {noun} does {hero} have now?", f"{hero} has {words[count]} {plural} now.")
    return Story(" ".join(lines), f"{hero} has {words[count]} {plural} in the end.", (ask,), (noun,))


LETTER_LINES = (
    "My name is {hero}, and I live in Alderbrook.",
    "I am writing to you from {place.the}.",
    "The weather is [fine|cold and windy|warm] today, and {pet} the {pet.kind} is [asleep next to me|playing outside|here with me].",
    "[Yesterday|This morning], I [went|walked] {out.to} with {friend}. <nature>",
    "[Yesterday|On Monday], I helped {adult} the {adult.kind} {work.at}, and {adult.he} gave me {food}.",
    "I [found|made|got] {thing.a}, and I want to show it to you.",
    "I still remember the day when we were {out2.at}.",
    "[How are you|Are you well]? [Please write soon|I hope to see you soon].",
)


def letter(rng: random.Random) -> Story:
    """A letter that begins with "Hello, "."""
    slots = vars(draw_cast(rng))
    to = rng.choice(
        ("{friend}", "{friend}", "dear {friend}", "my friend", "everyone", "dear {adult2}", "world", "dear reader")
    )
    lines = [fill(rng, "Hello, " + to + "!", slots)]
    body: list[str] = rng.sample(LETTER_LINES[1:-1], rng.randint(2, 4))
    if "I am writing to you from {place.the}." in body:
        body.sort(key=lambda line: not line.startswith("I am writing"))
    if rng.random() < 0.6:
        body.insert(0, LETTER_LINES[0])
    lines += [fill(rng, line, slots, RULES) for line in [*body, LETTER_LINES[-1]]]
    closing = rng.choice(("Your friend,", "Best wishes,", "Yours,", "With love,"))
    return Story(f"{' '.join(lines)}\n\n{closing}\n{slots['hero']}", "", (), ())


def join_words(words: list[str]) -> str:
    """["a", "b", "c"] to "a, b and c"."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def plain_text(rng: random.Random) -> str:
    """A document of the story part of the data."""
    kind = rng.random()
    if kind < 0.78:
        return tell(rng).text
    if kind < 0.90:
        return letter(rng).text
    return (journey if kind < 0.96 else counting)(rng).text
