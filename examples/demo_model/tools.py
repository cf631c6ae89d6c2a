"""Chat skill: tool calls.

The system message lists tools, one a line, under "Tools:":

    Tools:
    weather(city): tells the weather in a city
    add(a, b): adds two numbers

When the user's request fits a tool, the assistant answers `<tool>weather("Oslo")</tool>` and nothing else: strings in double
quotes, numbers bare. The next message has the role "tool" and holds the result, and the assistant answers with it. Tools of
`HELD_OUT` and a fixed part of the made-up tool names never appear in training.
"""

# ruff: noqa: E501, SIM905 - tables of words and templates read best one entry a line
from __future__ import annotations

import random
import zlib
from dataclasses import dataclass

from examples.demo_model.grammar import choose, fill, made_up_word, upper_first
from examples.demo_model.talk import Message, Skill, Talk, person_name, place_name
from examples.demo_model.world import CITIES, THING_NOUNS, article


@dataclass(frozen=True)
class Tool:
    """`ask` templates name the parameters in braces, `answer` also `{result}`; `results` is a template or "number"."""

    name: str
    parameters: tuple[str, ...]
    description: str
    ask: str
    answer: str
    results: str

    @property
    def line(self) -> str:
        return f"{self.name}({', '.join(self.parameters)}): {self.description}"


@dataclass(frozen=True)
class Use:
    """One request for a tool: what the user says, the call, the tool's result and the assistant's answer."""

    ask: str
    call: str
    result: str
    answer: str


def _tool(signature: str, description: str, ask: str, answer: str, results: str = "number") -> Tool:
    name, _, parameters = signature.rstrip(")").partition("(")
    return Tool(name, tuple(parameters.split(", ")) if parameters else (), description, ask, answer, results)


WEATHER = "[sunny|cloudy|rainy|windy|snowy|foggy]|[sunny|rainy|cloudy|windy], {n} degrees"
TOOLS: tuple[Tool, ...] = (
    _tool("weather(city)", "tells the weather", "[What is the weather|How is the weather|What is the weather like] in {city}?|Tell me the weather in {city}.", "The weather in {city} is {result}.", WEATHER),
    _tool("get_weather(city)", "tells the weather in a city", "[What is the weather like|How is the weather] in {city}?|I want to know the weather in {city}.", "The weather in {city} is {result}.", WEATHER),
    _tool("temperature(city)", "tells how warm it is in a city", "How warm is it in {city}?|What is the temperature in {city}?", "It is {result} degrees in {city}."),
    _tool("add(a, b)", "adds two numbers", "[What is|How much is] {a} [plus|and|+] {b}?|Add {a} and {b}.", "{a} plus {b} is {result}.", "sum"),
    _tool("subtract(a, b)", "subtracts b from a", "[What is|How much is] {a} [minus|-] {b}?", "{a} minus {b} is {result}.", "difference"),
    _tool("multiply(a, b)", "multiplies two numbers", "[What is|How much is] {a} [times|*] {b}?|Multiply {a} by {b}.", "{a} times {b} is {result}.", "product"),
    _tool("calculator(a, b)", "computes the sum of two numbers", "[What is|Compute] the sum of {a} and {b}[?|.]", "The sum of {a} and {b} is {result}.", "sum"),
    _tool("time(city)", "tells the time in a city", "What time is it in {city}?|Tell me the time in {city}.", "In {city}, it is {result}.", "clock"),
    _tool("population(city)", "tells how many people live in a city", "How many people live in {city}?|What is the population of {city}?", "{result} people live in {city}."),
    _tool("translate(word, language)", "translates a word", "[Translate {word} into {language}|What is {word} in {language}|How do you say {word} in {language}]?", "In {language}, {word} is {result}.", "word"),
    _tool("price(item)", "tells the price of an item", "[What is the price of|How much costs] a {item}?|Tell me the price of a {item}.", "A {item} costs {result} coins."),
    _tool("find(item)", "finds where an item is", "Where is [the|my] {item}?|Find the {item}.|Can you find the {item}?", "The {item} is {result}.", "where"),
    _tool("phone(person)", "looks up a phone number", "What is the phone number of {person}?|I need {person}'s phone number.", "The phone number of {person} is {result}.", "phone"),
    _tool("call(person)", "calls a person", "[Please call|Call|Ring] {person}.|Call {person}, please.", "I called {person}: {result}.", "[done|no answer|line busy]"),
    _tool("send_mail(person, text)", "sends a mail to a person", "[Send a mail|Write a mail] to {person} with the text {text}.|Mail {person} the text {text}.", "The mail to {person} was sent: {result}.", "[done|ok|sent]"),
    _tool("search(query)", "searches the web", "[Search|Search the web] for {query}.|Look up {query} on the web.", "I found this: {result}.", "word"),
    _tool("distance(a, b)", "tells how far two cities are apart", "How far is it from {city_a} to {city_b}?|What is the distance from {city_a} to {city_b}?", "It is {result} kilometres from {city_a} to {city_b}."),
    _tool("play(song)", "plays a song", "[Play|Please play] the song {song}.|Play the song {song}, please.", "The song {song} is playing: {result}.", "[ok|done|playing]"),
    _tool("light(room, state)", "switches the light in a room on or off", "[Switch|Turn] {state} the light in the {room}.|Turn the light in the {room} {state}.", "The light in the {room} is {state}.", "[ok|done]"),
    _tool("timer(minutes)", "sets a timer", "[Set|Start] a timer for {minutes} minutes.", "The timer is set for {minutes} minutes.", "[ok|done|timer set]"),
    _tool("remind(text)", "saves a reminder", "Remind me: {text}.|Save a reminder: {text}.", "I will remind you: {text}.", "[ok|saved|done]"),
    _tool("book(title)", "looks for a book in the library", "[Is there|Do you have] the book {title}?|Look for the book {title}.", "The book {title} is {result}.", "[in the library|not there|on the top shelf|lent out]"),
    _tool("age(person)", "tells how old a person is", "How old is {person}?|What is the age of {person}?", "{person} is {result} years old."),
    _tool("capital(country)", "tells the capital of a country", "What is the capital of {country}?|Name the capital of {country}.", "The capital of {country} is {result}.", "word"),
    _tool("random_number(low, high)", "draws a random number", "[Draw|Give me|Pick] a random number from {low} to {high}.", "The random number is {result}."),
    _tool("list_files(folder)", "lists the files of a folder", "[What|Which] files are in {folder}?|List the files in {folder}.", "The files in {folder} are: {result}.", "word"),
    _tool("stock(item)", "tells how many of an item are in the shop", "How many {item}s are in the shop?", "There are {result} {item}s in the shop."),
    _tool("open(door)", "opens a door", "[Open|Please open] the {door} door.", "The {door} door is open.", "[ok|done|opened]"),
)  # fmt: skip
HELD_OUT: tuple[Tool, ...] = (
    _tool("forecast(city)", "tells the weather of tomorrow", "What will the weather be in {city} tomorrow?", "The weather in {city} will be {result}.", WEATHER),
    _tool("divide(a, b)", "divides two numbers", "Divide {a} by {b}.|What is {a} divided by {b}?", "{a} divided by {b} is {result}."),
    _tool("height(person)", "tells how tall a person is", "How tall is {person}?|What is the height of {person}?", "{person} is {result} tall."),
    _tool("message(person, text)", "sends a message to a person", "Send a message to {person} with the text {text}.", "The message was sent: {result}.", "[ok|done]"),
    _tool("weight(item)", "tells the weight of an item", "What is the weight of a {item}?|Tell me the weight of a {item}.", "The weight is {result}."),
    _tool("alarm(hour)", "sets an alarm", "Set an alarm for {hour}.|Set the alarm for {hour}.", "The alarm is set for {hour}.", "[ok|done]"),
    _tool("mayor(city)", "tells the mayor of a city", "Who is the mayor of {city}?|Tell me the mayor of {city}.", "The mayor of {city} is {result}.", "word"),
    _tool("recipe(dish)", "finds a recipe for a dish", "Find a recipe for {dish}.|I need a recipe for {dish}.", "Here is the recipe for {dish}: {result}.", "word"),
)  # fmt: skip

CITY_LIKE = ("city", "country", "city_a", "city_b")
NUMBER_LIKE = ("a", "b", "low", "high", "minutes", "hour")
LANGUAGES = "French German Spanish Latin Dutch Greek Italian Polish".split()
ROOMS = "kitchen hall bedroom cellar garden barn attic bathroom".split()
PROPERTIES = (
    "size colour owner age price weight name status level score speed value length colour rank code grade limit total rate"
    " address title date phase mood depth width power origin taste"
).split()
HELD_OUT_PROPERTIES = "height volume label shape cost energy position count".split()
ENTITIES = (
    "star ship garden city river book engine house stone planet tree robot order user team flower shop train".split()
)


def is_held_out_name(name: str) -> bool:
    """Whether a made-up tool name is kept for the evaluation."""
    return zlib.crc32(name.encode()) % 8 == 0


def draw_value(rng: random.Random, parameter: str) -> str | int:
    if parameter in NUMBER_LIKE:
        return rng.randint(0, 99) if parameter != "hour" else rng.randint(1, 12)
    if parameter in CITY_LIKE:
        return place_name(rng, CITIES)
    if parameter == "person":
        return person_name(rng)
    if parameter == "language":
        return rng.choice(LANGUAGES)
    if parameter == "state":
        return rng.choice(("on", "off"))
    if parameter in ("room", "door"):
        return rng.choice(ROOMS)
    if parameter == "text":
        return rng.choice(
            ("hello", "come home", "buy bread", "call me", "good night", "water the roses", made_up_word(rng))
        )
    return rng.choice(THING_NOUNS) if rng.random() < 0.5 else made_up_word(rng)


def draw_result(rng: random.Random, tool: Tool, values: dict[str, str | int]) -> str:
    a, b = values.get("a"), values.get("b")
    match tool.results:
        case "sum" | "difference" | "product" if isinstance(a, int) and isinstance(b, int):
            return str({"sum": a + b, "difference": a - b, "product": a * b}[tool.results])
        case "number":
            return str(rng.choice((rng.randint(1, 99), rng.randint(100, 9999))))
        case "word":
            return made_up_word(rng) if rng.random() < 0.7 else rng.choice(THING_NOUNS)
        case "clock":
            return f"{rng.randint(1, 12)}:{rng.randint(0, 59):02d}"
        case "phone":
            return str(rng.randint(10000, 99999))
        case "where":
            return rng.choice(
                ("in the kitchen", "under the bed", "on the table", "at the mill", "in the box", "behind the door")
            )
        case results:
            return fill(rng, f"[{results}]", {"n": rng.randint(1, 35)}).lower()


def draw_use(rng: random.Random, tool: Tool) -> Use:
    """A request that fits the tool."""
    two_cities = tool.name == "distance"
    values = {name: draw_value(rng, f"city_{name}" if two_cities else name) for name in tool.parameters}
    slots: dict[str, object] = dict(values)
    if two_cities:
        slots |= {f"city_{name}": value for name, value in values.items()}
    result = draw_result(rng, tool, values)
    ask = fill(rng, f"[{tool.ask}]", slots)
    call = call_text(tool, list(values.values()))
    if rng.random() < 0.04:
        error = rng.choice(("Error: not found", "Error: no answer", "Error: try again later"))
        return Use(ask, call, error, f"The tool reports an error: {error.removeprefix('Error: ')}.")
    return Use(ask, call, result, upper_first(tool.answer.format_map({**slots, "result": result})))


def call_text(tool: Tool, values: list[str | int]) -> str:
    written = ", ".join(f'"{value}"' if isinstance(value, str) else str(value) for value in values)
    return f"<tool>{tool.name}({written})</tool>"


def made_up_tool(rng: random.Random, *, held_out: bool = False) -> Tool:
    """A lookup tool with a name and subject that vary without end, so that names must be copied from the system message."""
    known = HELD_OUT_PROPERTIES if held_out and rng.random() < 0.5 else PROPERTIES
    subject = rng.choice(known) if rng.random() < 0.6 else made_up_word(rng)
    entity = rng.choice(ENTITIES)
    while True:
        name = rng.choice(
            (
                subject,
                f"get_{subject}",
                f"{entity}_{subject}",
                f"find_{subject}",
                f"{subject}_of",
                made_up_word(rng),
                f"lookup_{subject}",
            )
        )
        if is_held_out_name(name) == held_out:
            break
        subject = rng.choice(known) if rng.random() < 0.4 else made_up_word(rng)
    ask = f"What is the {subject} of the {entity} {{{entity}}}?|[Tell me|Find|Look up|I need] the {subject} of the {entity} {{{entity}}}.|I need the {subject} of the {entity} {{{entity}}}."
    verb = rng.choice(("tells", "finds", "looks up", "returns"))
    return Tool(name, (entity,), f"{verb} the {subject} of {article(entity)} {entity}", ask, f"The {subject} of the {entity} {{{entity}}} is {{result}}.",
                rng.choice(("word", "number")))  # fmt: skip


def draw_tool(rng: random.Random) -> Tool:
    return made_up_tool(rng) if rng.random() < 0.4 else rng.choice(TOOLS)


def draw_toolbox(rng: random.Random, wanted: Tool | None = None) -> list[Tool]:
    """One to four tools with different names and purposes, in random order, among them `wanted`."""
    box = [wanted] if wanted else [draw_tool(rng)]
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3))):
        other = draw_tool(rng)
        if not any(_clash(other, tool) for tool in box):
            box.append(other)
    rng.shuffle(box)
    return box


SAME_PURPOSE = ({"weather", "get_weather", "forecast", "temperature"}, {"add", "calculator"}, {"call", "phone"}, {"find", "search"},
                {"send_mail", "message"}, {"age", "height"}, {"price", "stock", "weight"})  # fmt: skip


def _clash(one: Tool, other: Tool) -> bool:
    if one.name == other.name or one.description == other.description:
        return True
    return any(one.name in group and other.name in group for group in SAME_PURPOSE)


def system_text(rng: random.Random, toolbox: list[Tool], persona: str = "") -> str:
    lead = persona or choose(rng, "[||You can use tools.|You are a helpful assistant.|Use a tool when it fits.]")
    listing = "\n".join(("Tools:", *(tool.line for tool in toolbox)))
    return f"{lead}\n{listing}" if lead else listing


def tool_skill(toolbox: list[Tool]) -> Skill:
    """A skill for talks whose system message lists `toolbox`: a request, a call, its result and the answer."""

    def skill(talk: Talk) -> None:
        use = draw_use(talk.rng, talk.rng.choice(toolbox))
        if talk.rng.random() < 0.12:
            _two_calls(talk, use, draw_use(talk.rng, talk.rng.choice(toolbox)))
            return
        talk.user(use.ask)
        _call(talk, use)
        talk.assistant(use.answer)

    return skill


def _call(talk: Talk, use: Use) -> None:
    talk.assistant(use.call)
    talk.messages.append(Message("tool", use.result))


def _two_calls(talk: Talk, first: Use, second: Use) -> None:
    """Two requests in one message: two calls one after the other, then both answers."""
    talk.user(f"{first.ask} {talk.rng.choice(('And then: ', 'Also: ', ''))}{second.ask}")
    _call(talk, first)
    _call(talk, second)
    talk.assistant(f"{first.answer} {second.answer}")


def arithmetic_tools(toolbox: list[Tool]) -> bool:
    """Whether a sum must go to a tool of the box."""
    return any(tool.name in ("add", "subtract", "calculator", "multiply", "divide") for tool in toolbox)


def covers_unknowns(toolbox: list[Tool]) -> bool:
    """Whether a question that the model refuses without tools could be meant for a tool of the box."""
    names = {"weather", "get_weather", "population", "capital", "translate", "distance", "search", "price"}
    return any(tool.name in names for tool in toolbox)
