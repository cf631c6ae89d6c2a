import sys
from math import inf

from inferlet_sdk import Context, Sampler, gather, inferlet

MODELS = ["demo", "demo-reasoner"]


@inferlet
async def main(
    args,
    question: str = "What is 47 + 38?",
    models: list[str] = MODELS,
    rounds: int = 3,
    temperature: float = 1.5,
    seed: int = 1,
):
    """Two models answer. While they say different things, each sees the other's answer and answers anew. Each rates all
    answers by how probable it finds them, and the one with the best ratings of both counts."""
    if len(models) != 2 or rounds < 1:
        sys.exit("give two models, which may be the same, and one round or more")
    said, first, rated, tokens = ["", ""], list[str](), dict[str, float](), 0
    for number in range(rounds):
        seeds = [seed + 2 * number, seed + 2 * number + 1]
        samplers = [Sampler(temperature=temperature, seed=one) for one in seeds]
        found = await gather(*map(answer, models, [question] * 2, reversed(said), samplers))
        said, tokens = [text for text, _ in found], tokens + sum(count for _, count in found)
        first = first or said
        ratings = await gather(*(rate(model, question, said) for model in models))
        rated |= {text: sum(both) for text, *both in zip(said, *ratings, strict=True)}
        if last(said[0]) == last(said[1]):
            break
    agreed = max(rated, key=rated.__getitem__)
    await args.send(f"{agreed}\nRounds: {number + 1}\n")
    return {"answer": last(agreed), "first": [last(text) for text in first], "tokens": tokens}


async def answer(model: str, question: str, other: str, sampler: Sampler) -> tuple[str, int]:
    """What a model answers, with the other's answer in view if there is one, and how many tokens it has."""
    seen = [("user", question), ("assistant", other)] if other else []
    async with Context(model) as ctx:
        messages = [{"role": role, "content": content} for role, content in [*seen, ("user", question)]]
        generation = ctx.fill_chat(messages).generate(80, sampler=sampler)
        return await generation.whole(), len(generation.tokens)


async def rate(model: str, question: str, texts: list[str]) -> list[float]:
    """The log-probability of each text as the answer; an empty one is none."""
    async with Context(model) as ctx:
        ctx.fill_chat("user", question)
        return [sum(await ctx.score(text)) if text else -inf for text in texts]


def last(text: str) -> str:
    return text.split("\n")[-1].removeprefix("Answer: ")
