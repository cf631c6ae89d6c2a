import sys
from collections import Counter
from dataclasses import dataclass

from inferlet_sdk import Context, Sampler, gather, inferlet, traits

WORKED = [
    {"role": "system", "content": "You are Pip. Be brief."},
    {"role": "user", "content": "What is 12 + 30?"},
    {"role": "assistant", "content": "Ones: 2 + 0 = 2, write 2, carry 0.\nTens: 1 + 3 + 0 = 4.\nAnswer: 42"},
    {"role": "user", "content": "What is 25 + 17?"},
    {"role": "assistant", "content": "Ones: 5 + 7 = 12, write 2, carry 1.\nTens: 2 + 1 + 1 = 4.\nAnswer: 42"},
    {"role": "user", "content": "What is 90 - 41?"},
    {"role": "assistant", "content": "Ones: 10 - 1 = 9, borrow 1.\nTens: 9 - 4 - 1 = 4.\nAnswer: 49"},
]


@dataclass
class Person:
    name: str
    age: int
    city: str


@inferlet
async def main(args, branches: int = 5):
    """Continues a text, lets branches of one prompt vote, and keeps a text to a schema."""
    if branches < 1:
        sys.exit("branches: give 1 or more")
    await args.send("A prompt, and how the model goes on\n\n  Once upon a time")
    await args.stream(Context(args.model).fill("Once upon a time").generate(40, stop=". "))

    await args.send(f".\n\n{branches} branches of one prompt, and their vote\n\n  What is 47 + 38? ")
    prompt = Context(args.model).fill_chat([*WORKED, {"role": "user", "content": "What is 47 + 38?"}])
    await prompt.flush()
    pages = traits.usage().pages
    forks = [prompt.fork() for _ in range(branches)]
    answers = await gather(*(answer(fork, seed) for seed, fork in enumerate(forks)))
    best, votes = Counter(answers).most_common(1)[0]
    await args.send(f"{', '.join(answers)}: {votes} of {branches} say {best}\n")
    saved = (branches - 1) * len(prompt)
    await args.send(f"  prompt computed once: {pages} pages, {saved} tokens saved\n")

    fact = "Mia is 7 years old and lives in Oslo."
    await args.send(f"\nA text as a value of a type\n\n  {fact}\n")
    ctx = Context(args.model).fill_chat("user", f"{fact} Write this as JSON with name, age, city.")
    person = await ctx.generate_as(Person, max_tokens=60)
    await args.send(f"  {person}\n  each token kept to the schema: no parsing, no second try\n")


async def answer(branch: Context, seed: int) -> str:
    text = await branch.generate_until(max_tokens=60, sampler=Sampler(temperature=0.9, seed=seed))
    return text.rpartition(" ")[2]
