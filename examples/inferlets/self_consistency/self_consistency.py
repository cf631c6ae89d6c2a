from collections import Counter

from inferlet_sdk import Context, Sampler, inferlet


@inferlet
async def main(
    args,
    question: str = "What is 47 + 38?",
    samples: int = 9,
    temperature: float = 1.5,
    seed: int = 1,
    tokens: int = 80,
):
    """Samples several chains of thought at the same time, and takes the answer in which most of them end."""
    ctx = Context(args.model).fill_chat("user", question)
    sampler = Sampler(temperature=temperature, seed=seed)
    chains = await ctx.best_of(samples, tokens, sampler=sampler, score=lambda _: 0)
    answers = [chain.text.split("\n")[-1].removeprefix("Answer: ") for chain in chains]
    ((answer, votes),) = Counter(answers).most_common(1)
    await args.send(f"{answer}, by {votes} of {samples}\n")
    return {"answer": answer, "answers": answers}
