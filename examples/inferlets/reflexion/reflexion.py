import re
import sys

from inferlet_sdk import Context, Sampler, inferlet

EQUATION = re.compile(r"(\d+) ([-+]) (\d+)(?: [-+] (\d+))? = (\d+)")


@inferlet
async def main(
    args,
    question: str = "What is 47 + 38?",
    rounds: int = 4,
    temperature: float = 1.5,
    seed: int = 1,
    learn: bool = True,
):
    """Answers, checks its steps, and tries again with what it has learnt: the steps that were right (reflexion). With
    `learn=false` each try begins anew, and so does one after a try from which it has learnt nothing."""
    if rounds < 1:
        sys.exit("give one round or more")
    ctx, tokens, known = Context(args.model).fill_chat("user", question), 0, ""
    start = len(ctx)
    for number in range(rounds):
        sampler = Sampler(temperature=temperature, seed=seed + number)
        generation = ctx.truncate(start).fill(known).generate(80, sampler=sampler)
        text = known + await generation.whole()
        tokens += len(generation.tokens)
        right = right_steps(question, text)
        if right == text:
            break
        known = right if learn and right != known else ""
    await args.send(f"{text}\nTries: {number + 1}\n")
    return {"answer": text.split("\n")[-1].removeprefix("Answer: "), "tokens": tokens}


def right_steps(question: str, text: str) -> str:
    """The lines before the first one that is wrong, or has digits that the question does not have."""
    found: dict[str, int] = {}
    right = ""
    for line in text.splitlines(keepends=True):
        name, _, told = line.partition(": ")
        if name == "Answer" and {"Ones", "Tens"} <= found.keys():
            if told.strip().lstrip("-") != str(10 * found["Tens"] + found["Ones"] % 10):
                return right
        elif match := EQUATION.match(told):
            sign = 1 if match[2] == "+" else -1
            result = int(match[1]) + sign * (int(match[3]) + int(match[4] or 0))
            carried = f"write {result % 10}, carry {result // 10}." in told or name != "Ones" or sign < 0
            known = question + "0" * (name == "Tens" and bool(re.search(r"\b\d\b", question)))
            asked = match[1][-1] in known and match[3] in known
            if int(match[5]) != result or not carried or not asked:
                return right
            found[name] = result
        elif "so take" not in line:
            return right
        right += line
    return right
