import re

from inferlet_sdk import Context, Response, http_get, inferlet

TOOLS = """Tools:
weather(city): tells the weather in a city
population(city): tells how many people live in a city"""
CALL = re.compile(r'<tool>(\w+)\("([\w ]+)"\)</tool>')


@inferlet
async def main(args, tools: str = "http://127.0.0.1:8099", turns: int = 4):
    """Answers questions with the help of a web service: the model says what to look up, and sees what came (ReAct)."""
    ctx = Context(args.model).fill_chat("system", TOOLS)
    while question := await args.receive():
        ctx.fill_chat("user", question)
        for _ in range(turns):
            said = await ctx.generate_until(max_tokens=40)
            await args.send(f"{said}\n")
            call = CALL.fullmatch(said)
            if call is None:
                break
            ctx.fill_chat("tool", await look_up(tools, *call.groups()))


async def look_up(tools: str, name: str, argument: str) -> str:
    response: Response = await http_get(f"{tools}/{name}/{argument}.txt", timeout=10)
    return await response.text() if response.ok else f"error {response.status}"
