"""Chat skills without tools: small talk, facts, memory, stories and questions about them, arithmetic, refusals."""

# ruff: noqa: E501, SIM905 - tables of words and templates read best one entry a line
from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from examples.demo_model import arithmetic, stories
from examples.demo_model.grammar import capitalise, fill, made_up_word, upper_first
from examples.demo_model.knowledge import CLAIMS, FACTS
from examples.demo_model.talk import Talk, person_name, place_name
from examples.demo_model.world import CHILDREN, CITIES, COLOURS, THING_ADJECTIVES, THING_NOUNS, WORKERS, Thing

UNKNOWN = (
    "I do not know that. I am only a small demo model.",
    "I am sorry, but I do not know that.",
    "I do not know. I know only my small world and a few everyday things.",
)
CAN_DO = (
    "I can tell short stories, add and subtract numbers up to 99, answer simple questions, write flat JSON and call tools.",
    "I can tell a story from Alderbrook, do small sums step by step, list facts, call a tool and write JSON.",
)


def greeting(talk: Talk) -> None:
    hello = talk.pick("[Hello|Hi|Hey|Good morning|Good day|Hello there|Hi there][!|.|]")
    known = f", {talk.memory['name']}" if "name" in talk.memory else ""
    answer = talk.pick(
        "Hello{k}! How can I help you?", "Hello{k}! What can I do for you?", "Hello{k}! Nice to hear from you.", k=known
    )
    talk.exchange(
        hello + ("" if talk.rng.random() < 0.7 else talk.pick(" How are you?", " How are you today?")),
        answer,
        styled=True,
    )


def thanks(talk: Talk) -> None:
    kind = talk.rng.random()
    if kind < 0.6:
        ask, answer = "[Thank you|Thanks|Thank you very much|Thanks a lot][!|.]", "You are welcome[!|.]"
    elif kind < 0.8:
        ask, answer = "[How are you|How do you do|How are you today]?", "I am well, thank you. How can I help you?"
    else:
        ask, answer = (
            "[Goodbye|Bye|See you soon|Good night][!|.]",
            "Goodbye! [Come back soon.|See you soon.|Have a nice day.]",
        )
    talk.exchange(talk.pick(ask), talk.pick(answer))


def who_are_you(talk: Talk) -> None:
    if talk.rng.random() < 0.35:
        talk.exchange(talk.pick("What can you do?", "How can you help me?", "What do you know?"), talk.pick(*CAN_DO))
        return
    name = talk.bot or ""
    ask = talk.pick("Who are you?", "What is your name?", "What are you called?", "Tell me who you are.")
    answer = (
        f"I am {name}, [a friendly helper|a small helper]." if name else "I am a small demo model[.| from Alderbrook.]"
    )
    talk.exchange(ask, talk.pick(answer), styled=True)


def fact(talk: Talk) -> None:
    known = talk.rng.choice(FACTS)
    ask = fill(talk.rng, f"[{known.ask}]")
    if talk.style.brief:
        talk.exchange(ask, upper_first(known.short) + ".")
    else:
        talk.exchange(ask, capitalise(known.full), styled=True)


def yes_or_no(talk: Talk) -> None:
    claim, true = talk.rng.choice(CLAIMS)
    ask = talk.pick(
        "Is it true that {c}?", "True or false: {c}.", "{c}. [Is that right?|Is this correct?|Yes or no?]",
        "{c}. Answer yes or no.", c=claim,
    )  # fmt: skip
    if ask.startswith("True or false"):
        talk.exchange(ask, "True." if true else "False.")
    elif talk.style.brief or ask.endswith("Answer yes or no."):
        talk.exchange(ask, "Yes." if true else "No.")
    else:
        talk.exchange(ask, "Yes, that is right." if true else "No, that is not right.", styled=True)


def sum_check(talk: Talk) -> None:
    """A vote on a sum of small numbers."""
    left, right = talk.rng.randint(0, 9), talk.rng.randint(0, 9)
    claimed = left + right if talk.rng.random() < 0.5 else max(0, left + right + talk.rng.choice((-2, -1, 1, 2)))
    ask = talk.pick(
        "Is this right? {l} + {r} = {c}. Answer yes or no.",
        "{l} + {r} = {c}. Answer yes or no.",
        l=left,
        r=right,
        c=claimed,
    )
    talk.exchange(ask, "Yes." if claimed == left + right else "No.")


def sum_question(talk: Talk) -> None:
    talk.exchange(*arithmetic.question(talk.rng, arithmetic.draw_problem(talk.rng)))


def refusal(talk: Talk) -> None:
    name = place_name(talk.rng, CITIES) if talk.rng.random() < 0.6 else person_name(talk.rng)
    ask = talk.pick(
        "What is the capital of {x}?", "Who is the [king|queen|president|mayor] of {x}?", "How many people live in {x}?",
        "When was {x} [born|built|founded]?", "Who invented the {y}?", "How do I [fix|install|repair] a {y}?",
        "What is the price of a {y} in {x}?", "Explain {y} physics.", "Who won the {y} cup in {x}?", "Translate {y} into French.",
        "What will the weather be in {x} tomorrow?", "How far is it from {x} to {z}?", "Write a program that {y}s numbers.",
        "What does {y} mean?", "What is a {y}?", "Who wrote the book {x}?",
        x=name, y=made_up_word(talk.rng), z=place_name(talk.rng, CITIES),
    )  # fmt: skip
    talk.exchange(ask, talk.rng.choice(UNKNOWN), styled=True)


FOODS = "bread soup cheese honey cake pancakes apples pizza rice noodles cherries carrots jam pears".split()


def _word(rng: random.Random) -> str:
    return made_up_word(rng) if rng.random() < 0.6 else rng.choice(THING_NOUNS)


@dataclass(frozen=True)
class Memory:
    """Something that users say about themselves, in templates over its value `v`; `ask` and `recall` come later."""

    draw: Callable[[random.Random], str]
    say: str
    reply: str
    ask: str
    recall: str


MEMORIES: dict[str, Memory] = {
    "name": Memory(person_name, "[My name is|I am|I'm|Call me] {v}.", "[Nice to meet you|Hello|Pleased to meet you], {v}[!|.]",
        "[What is my name|Who am I|Do you remember my name|What am I called]?", "Your name is {v}."),
    "age": Memory(lambda rng: str(rng.randint(5, 90)), "I am {v} years old.", "[I see, you are {v} years old.|{v} is a good age.]",
        "[How old am I|What is my age]?", "You are {v} years old."),
    "city": Memory(lambda rng: place_name(rng, CITIES), "I [live in|come from] {v}.", "{v} [sounds nice|is a fine place].",
        "[Where do I live|Where do I come from|Which city do I live in]?", "You live in {v}."),
    "colour": Memory(lambda rng: rng.choice(COLOURS), "My favourite colour is {v}.", "{v} is a nice colour.",
        "What is my favourite colour?|Which colour do I like best?", "Your favourite colour is {v}."),
    "food": Memory(lambda rng: rng.choice(FOODS), "My favourite food is {v}.|I love {v}.", "{v} [sounds|is] tasty.",
        "What is my favourite food?|What food do I love?", "Your favourite food is {v}."),
    "dog": Memory(person_name, "I have a dog called {v}.|My dog is called {v}.", "{v} is a good name for a dog.",
        "What is my dog called?|What is the name of my dog?", "Your dog is called {v}."),
    "cat": Memory(person_name, "I have a cat called {v}.|My cat is called {v}.", "{v} is a lovely name for a cat.",
        "What is my cat called?|What is the name of my cat?", "Your cat is called {v}."),
    "friend": Memory(person_name, "My best friend is {v}.|My best friend is called {v}.", "It is good to have a friend like {v}.",
        "Who is my best friend?|What is my friend called?", "Your best friend is {v}."),
    "job": Memory(lambda rng: rng.choice(WORKERS), "I work as a {v}.|I am a {v}.", "A {v} has an important job.",
        "What is my job?|What do I work as?", "You work as a {v}."),
    "word": Memory(_word, "[Remember the word {v}|The secret word is {v}|The code word is {v}].", "[I will remember {v}|I have noted the word {v}].",
        "What [was|is] the [word|secret word|code word]?", "The word is {v}."),
    "number": Memory(lambda rng: str(rng.randint(1, 99)), "My lucky number is {v}.|My favourite number is {v}.", "{v} is a fine number.",
        "What is my [lucky|favourite] number?", "Your number is {v}."),
}  # fmt: skip


def tell_memory(talk: Talk) -> None:
    """The user says one or two things about themselves."""
    unknown = [key for key in MEMORIES if key not in talk.memory]
    if not unknown:
        return
    keys = talk.rng.sample(unknown, min(len(unknown), talk.rng.choice((1, 1, 2))))
    for key in keys:
        talk.memory[key] = MEMORIES[key].draw(talk.rng)
    said = [fill(talk.rng, f"[{MEMORIES[key].say}]", {"v": talk.memory[key]}) for key in keys]
    reply = fill(talk.rng, MEMORIES[keys[0]].reply, {"v": talk.memory[keys[0]]})
    talk.exchange(" ".join(said), reply, styled=True)


def ask_memory(talk: Talk) -> None:
    """A question about something that the user has said before, or sometimes about something not said."""
    if not talk.memory and talk.rng.random() < 0.7:
        tell_memory(talk)
    known = list(talk.memory)
    key = talk.rng.choice(known if known and talk.rng.random() < 0.93 else list(MEMORIES))
    ask = fill(talk.rng, f"[{MEMORIES[key].ask}]")
    if key in talk.memory:
        talk.exchange(ask, MEMORIES[key].recall.format(v=talk.memory[key]), styled=True)
    else:
        talk.exchange(ask, "I do not know. You have not told me yet.", styled=True)


def who_has(talk: Talk) -> None:
    """Facts about some people in one message, and questions about them."""
    rng = talk.rng
    count = rng.randint(2, 4)
    people = rng.sample(CHILDREN, count) if rng.random() < 0.6 else [person_name(rng) for _ in range(count)]
    things = [Thing(noun, rng.choice(THING_ADJECTIVES)) for noun in rng.sample(THING_NOUNS, count)]
    told = " ".join(f"{who} has {thing.a}." for who, thing in zip(people, things, strict=True))
    index = rng.randrange(count)
    who, thing = people[index], things[index]
    if rng.random() < 0.5:
        talk.exchange(f"{told} Who has {thing.short}?", f"{who} has {thing.the}.", styled=True)
    else:
        talk.exchange(f"{told} What does {who} have?", f"{who} has {thing.a}.", styled=True)


def repeat(talk: Talk) -> None:
    """Copying: a word, a name or a short sentence."""
    rng = talk.rng
    word = _word(rng)
    if rng.random() < 0.3:
        word = " ".join(rng.sample(THING_NOUNS, rng.randint(2, 4)))
    count, times = rng.choice((("twice", 2), ("three times", 3)))
    if rng.random() < 0.6:
        talk.exchange(talk.pick("Repeat: {w}", "Say: {w}", "Repeat after me: {w}", "Write the word {w}.", w=word) if " " not in word
                      else talk.pick("Repeat: {w}", "Say: {w}", w=word), word)  # fmt: skip
    else:
        talk.exchange(talk.pick("Say {w} {c}.", "Repeat {w} {c}.", w=word, c=count), " ".join([word] * times))


def tell_story(talk: Talk) -> None:
    """The user asks for a story, often about something; sometimes a question about it follows."""
    story = stories.tell(talk.rng)
    if talk.rng.random() < 0.25:
        ask = talk.pick(
            "Tell me a story.", "[Please tell|Can you tell] me a [short |]story.", "Write a [short|little] story."
        )
    else:
        topic = talk.rng.choice(story.topics)
        ask = talk.pick("Tell me a [short |]story about {t}.", "Write a [short |]story about {t}.", "[I would like|I want] a story about {t}.",
                        "[Can you tell|Please tell] me a story about {t}[?|, please.]", t=topic)  # fmt: skip
    talk.exchange(ask, story.text)
    _follow_up(talk, story)


def story_questions(talk: Talk) -> None:
    """The user gives a text and asks about it."""
    draw = talk.rng.random()
    story = (stories.tell if draw < 0.6 else stories.journey if draw < 0.85 else stories.counting)(talk.rng)
    if talk.rng.random() < 0.3:
        ask = talk.pick(
            "Sum up this story in one sentence:", "[Summarise|Summarize] this story:", "What is this story about?"
        )
        talk.exchange(f"{ask}\n{story.text}", story.summary)
    else:
        question, answer = talk.rng.choice(story.questions)
        if talk.rng.random() < 0.5:
            talk.exchange(f"{story.text}\n\n{question}", answer)
        else:
            lead = talk.pick("Read this story and answer:", "Here is a story.", "Question:")
            talk.exchange(f"{lead} {question}\n\n{story.text}", answer)
    _follow_up(talk, story)


def _follow_up(talk: Talk, story: stories.Story) -> None:
    for question, answer in talk.rng.sample(story.questions, min(len(story.questions), talk.rng.choice((0, 1, 1, 2)))):
        talk.exchange(question, answer)
    if talk.rng.random() < 0.15:
        talk.exchange(
            talk.pick("Sum it up in one sentence.", "Can you sum up the story?", "What was the story about?"),
            story.summary,
        )
