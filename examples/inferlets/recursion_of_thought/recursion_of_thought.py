import random
import re

from inferlet_sdk import Context, gather, inferlet

SUMS = "Sums:\nO=E+W\np=7+T\nT=4+5\nW=b+6\nE=L+p\nb=8+3\nL=4+1"
TRIES = 12


@inferlet
async def main(args, sums: str = SUMS, letter: str = "O", straight: bool = False):
    """Tells the value of a nested sum (recursion of thought): a sum among its parts is a call with a context of its
    own. `straight` asks for the whole number at once."""
    shared = Context(args.model).fill_chat("system", sums, add_generation_prompt=False)
    await shared.flush()
    if straight:
        value = await shared.fill_chat("user", f"{letter}? Only the number.").generate_until(max_tokens=8)
    else:
        value = await Recursion(args.model, shared, sums.split("\n")).value(letter)
    await args.send(f"{letter} = {value}\n" if value else f"The model finds no value of {letter!r} in the sums.\n")
    return value


class Recursion:
    """Calls of the model."""

    def __init__(self, model: str, shared: Context, lines: list[str]) -> None:
        self.model, self.shared, self.lines = model, shared, lines

    async def value(self, part: str, depth: int = 8) -> str:
        """What a part comes to; "" if the model does not say it."""
        if part.isdigit() or depth == 0:
            return part if part.isdigit() else ""
        values = await gather(*(self.value(one, depth - 1) for one in await self.parts(part)))
        if len(values) < 2 or "" in values:
            return ""
        async with Context(self.model) as call:
            call.fill_chat("user", f"What is {values[0]} + {values[1]}?")
            answer = await call.generate_until(max_tokens=80)
        return answer.rpartition("Answer: ")[2] if "Answer: " in answer else ""

    async def parts(self, part: str) -> tuple[str, ...]:
        """What a sum consists of. After an answer that is no line of the sums it asks again, these in another order."""
        for number in range(TRIES):
            async with self.reordered(number) if number else self.shared.fork() as call:
                line = await call.fill_chat("user", f"{part}?").generate_until(max_tokens=12)
            if line in self.lines and (match := re.fullmatch(rf"{part}=(\w)\+(\w)", line)):
                return match.groups()
        return ()

    def reordered(self, number: int) -> Context:
        lines = random.Random(number).sample(self.lines[1:], len(self.lines) - 1)
        text = "\n".join([self.lines[0], *lines])
        return Context(self.model).fill_chat("system", text, add_generation_prompt=False)
