import json
import re
from collections import Counter
from typing import Any

from inferlet_sdk import CallResult, Context, Tool, Tools, TooManyRounds, Truncated, inferlet
from inferlet_sdk.tools.events import Call

CALL = re.compile(r'(.*): <tool>(\w+)\("(.*)"\)</tool>')
WORLD, ROUNDS, LONGEST = "http://127.0.0.1:8099", 16, 60


@inferlet
async def main(args, world: str = WORLD, tools: str = "weather, population", grounded: bool = False, aliases: str = ""):
    """Answers questions with the tools of a server: the model says what to look up, and sees what came (ReACT).

    `grounded`: what it looks for is an end of the question, of 60 words at most, about what it has found last, by a
    tool that shares a word with it, the earliest one. `aliases`: words that the model knows, under which it is told of
    the tools.
    """
    toolbox = await Tools.from_mcp(f"{world}/mcp", only=tools.split(", "))
    known = dict(zip(aliases.split(", "), tools.split(", "), strict=False)) if aliases else {}
    if known:
        real = [(alias, toolbox[name]) for alias, name in known.items()]
        toolbox = Tools(*(Tool(tool, alias, f"tells the {alias}", tool.parameters) for alias, tool in real))

    async def show(event: object) -> None:
        if isinstance(event, CallResult):
            name = known.get(event.name, event.name)
            await args.send(f"{name}({', '.join(event.arguments.values())}) = {event.text}\n")

    answers, words = [], {name: alias for alias, name in known.items()}
    while question := await args.receive():
        asked = re.sub(r"\w+", lambda word: words.get(word[0], word[0]), question)
        ctx = Context(args.model)
        try:
            if grounded:
                answers.append(await answer(ctx, toolbox, asked, show))
            else:
                said = await toolbox.chat(ctx, asked, max_tokens=60, rounds=ROUNDS, strict=True, on_event=show)
                answers.append(said.text)
        except (TooManyRounds, Truncated) as error:
            answers.append(f"no answer: {error}")
        await args.send(f"{answers[-1]}\n")
    return answers


async def answer(ctx: Context, toolbox: Tools, question: str, show) -> str:
    """Goes on until the model answers. Each step looks for an end of the question that is shorter than the last one;
    a tool that fails twice in a step is not called again there."""
    words, found, failed = question.rstrip("?").split()[-LONGEST:], "", Counter[str]()
    ctx.fill_chat([{"role": "user", "content": question}], tools=toolbox)
    for _ in range(ROUNDS):
        usable = [tool for tool in toolbox if failed[tool.name] < 2]
        said = await ctx.generate_until(grammar=step(usable, words, found), max_tokens=100)
        if not (call := CALL.fullmatch(said)):
            return said
        result = await toolbox.run(Call(0, call[2], [call[3]], said))
        await show(result)
        ctx.fill_chat("tool", result.text)
        failed[call[2]] += 1
        if result.error is None:
            words, found, failed = call[1].removeprefix(call[3]).split()[2:], result.text, Counter()
    return f"no answer after {ROUNDS} look-ups"


def step(tools: list[Tool[..., Any]], words: list[str], found: str) -> str:
    """The grammar of a step: what is looked for, and the call of a tool that shares its earliest word that any tool
    shares; or the answer."""
    parts = [f'"Answer: " {json.dumps(found)}'] if found else []
    lines = {tool.name: spoken(f"{tool.name} {tool.description}") for tool in tools}
    for place in range(len(words) if tools else 0):
        wanted = " ".join([f"{found}'s"] * bool(found) + words[place:])
        sharing = ([name for name in lines if spoken(word) & lines[name]] for word in wanted.split())
        names = " | ".join(map(json.dumps, next(filter(None, sharing), lines)))
        call = json.dumps('("' + wanted.partition("'s ")[0] + '")</tool>')
        parts.append(f"{json.dumps(wanted + ': <tool>')} ({names}) {call}")
    return f"start: {' | '.join(parts)}"


def spoken(text: str) -> set[str]:
    """The words of a text that are no part of every question."""
    return set(re.findall("[a-z]+", text.lower())) - {"a", "is", "of", "s", "tells", "the", "what"}
