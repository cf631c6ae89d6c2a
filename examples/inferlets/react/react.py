from inferlet_sdk import CallResult, Context, Tools, inferlet


@inferlet
async def main(args, world: str = "http://127.0.0.1:8099", tools: str = "weather, population", rounds: int = 12):
    """Answers questions with the tools of a server: the model says what to look up, and sees what came (ReAct)."""

    async def show(event: object) -> None:
        if isinstance(event, CallResult):
            await args.send(f"{event.name}({', '.join(event.arguments.values())}) = {event.text}\n")

    toolbox = await Tools.from_mcp(f"{world}/mcp", only=tools.split(", "))
    while question := await args.receive():
        async with Context(args.model) as ctx:
            answer = await toolbox.chat(ctx, question, max_tokens=60, rounds=rounds, strict=True, on_event=show)
        await args.send(f"{answer.text}\n")
