from inferlet_sdk import CallResult, Context, Tools, inferlet


def multiply(a: int, b: int) -> int:
    """multiplies two numbers"""
    return a * b


def add(a: int, b: int) -> int:
    """adds two numbers"""
    return a + b


@inferlet
async def main(args, question: str = "What is 12 plus 30?", max_tokens: int = 60):
    """Answers a question with the help of two functions, and says which the model has called."""

    async def show(event: object) -> None:
        if isinstance(event, CallResult):
            given = ", ".join(map(str, event.arguments.values()))
            await args.send(f"{event.name}({given}) = {event.text}\n")

    async with Context(args.model) as ctx:
        answer = await Tools(multiply, add).chat(ctx, question, max_tokens=max_tokens, on_event=show)
    await args.send(answer.text + "\n")
    return len(answer.calls)
