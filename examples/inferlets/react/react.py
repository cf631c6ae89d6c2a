import json
import re
from collections import Counter

from inferlet_sdk import CallResult, Context, Tools, TooManyRounds, Truncated, inferlet
from inferlet_sdk.tools.events import Call

CALL = re.compile(r'(.*): <tool>(\w+)\("(.*)"\)</tool>')


@inferlet
async def main(
    args,
    world: str = "http://127.0.0.1:8099",
    tools: str = "weather, population",
    rounds: int = 16,
    grounded: bool = False,
):
    """Answers questions with the tools of a server: the model says what to look up, and sees what came (ReACT).
    `grounded`: what it looks for is an end of the question, about what it has found last."""

    async def show(event: object) -> None:
        if isinstance(event, CallResult):
            await args.send(f"{event.name}({', '.join(event.arguments.values())}) = {event.text}\n")

    toolbox = await Tools.from_mcp(f"{world}/mcp", only=tools.split(", "))
    answers = []
    while question := await args.receive():
        ctx = Context(args.model)
        try:
            if grounded:
                answers.append(await answer(ctx, toolbox, question, rounds, show))
            else:
                said = await toolbox.chat(ctx, question, max_tokens=60, rounds=rounds, strict=True, on_event=show)
                answers.append(said.text)
        except (TooManyRounds, Truncated) as error:
            answers.append(f"no answer: {error}")
        await args.send(f"{answers[-1]}\n")
    return answers


async def answer(ctx: Context, toolbox: Tools, question: str, rounds: int, show) -> str:
    """Goes on until the model answers. Each step looks for an end of the question that is shorter than the last one;
    a tool that fails twice in a step is not called again there."""
    words, found, failed = question.rstrip("?").split(), "", Counter[str]()
    ctx.fill_chat([{"role": "user", "content": question}], tools=toolbox)
    for _ in range(rounds):
        names = [tool.name for tool in toolbox if failed[tool.name] < 2]
        said = await ctx.generate_until(grammar=step(names, words, found), max_tokens=100)
        call = CALL.fullmatch(said)
        if call is None:
            return said
        result = await toolbox.run(Call(0, call[2], [call[3]], said))
        await show(result)
        ctx.fill_chat("tool", result.text)
        failed[call[2]] += 1
        if result.error is None:
            words, found, failed = call[1].split()[2:], result.text, Counter()
    return f"no answer after {rounds} look-ups"


def step(names: list[str], words: list[str], found: str) -> str:
    """The grammar of a step: what is looked for and the call, or the answer."""
    ends = [" ".join([f"{found}'s"] * bool(found) + words[place:]) for place in range(len(words))]
    starts = [found] if found else [word.removesuffix("'s") for word in words]
    calls = f'({any_of(ends)}) ": <tool>" ({any_of(names)}) "(\\"" ({any_of(starts)}) "\\")</tool>"'
    reply = f'"Answer: " {json.dumps(found)}'
    return "start: " + " | ".join([calls] * bool(words and names) + [reply] * bool(found))


def any_of(texts) -> str:
    return " | ".join(map(json.dumps, texts))
