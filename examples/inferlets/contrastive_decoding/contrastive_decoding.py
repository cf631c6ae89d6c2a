import random
import sys
from math import exp, log

from inferlet_sdk import Context, DistSampler, inferlet

K, MOST = 256, 1000
MESSAGES = [
    {"role": "user", "content": "My favourite colour is red."},
    {"role": "assistant", "content": "I see."},
    {"role": "user", "content": "What is my favourite colour?"},
]


@inferlet
async def main(
    args,
    messages: list[dict[str, str]] = MESSAGES,
    amateur: str = "",
    beta: float = 0.5,
    alpha: float = 0.1,
    temperature: float = 1.5,
    seed: int = 1,
    tokens: int = 20,
):
    """An answer of tokens that the model, the expert, finds more probable than an amateur does: the model called
    `amateur`, or else the same one, of which only the last message is seen. `beta`: how much the amateur counts. A
    token is plausible if the expert finds it at least `alpha` times as probable as its first choice."""
    if not (0 <= alpha <= 1 and abs(beta) <= MOST and temperature > 0):
        sys.exit(f"give an alpha from 0 to 1, a beta from -{MOST} to {MOST}, and a temperature above 0")
    draw = random.Random(seed)
    ctx = Context(args.model).fill_chat(messages)
    other = Context(amateur or args.model).fill_chat(messages if amateur else messages[-1:])
    more = len(ctx) - len(other)

    async def choose(dist):
        pairs = zip(dist.tokens, dist.probabilities, strict=True)
        least = max(alpha * dist.probabilities[0], 1e-30)
        plausible = {token: log(p) for token, p in pairs if p >= least}
        if beta and len(plausible) > 1:
            weak = await other.fill(ctx.tokens[more + len(other) :]).next_dist(K)
            known = dict(zip(weak.tokens, weak.probabilities, strict=True))
            rest = weak.probabilities[-1]
            plausible = {
                token: (1 + beta) * p - beta * log(max(known.get(token, rest), 1e-9)) for token, p in plausible.items()
            }
        best = max(plausible.values())
        return draw.choices(list(plausible), [exp((p - best) / temperature) for p in plausible.values()])[0]

    generation = ctx.generate(tokens, sampler=DistSampler(choose, K))
    await args.stream(generation)
    return generation.text
