import random
import sys
from math import exp, log

from inferlet_sdk import Context, DistSampler, inferlet

K, MOST = 256, 1000
TOLD = [
    {"role": "user", "content": "My favourite colour is red."},
    {"role": "assistant", "content": "I see."},
]


@inferlet
async def main(
    args,
    told: list[dict[str, str]] = TOLD,
    question: str = "What is my favourite colour?",
    scale: float = 1.5,
    temperature: float = 1.5,
    seed: int = 1,
    tokens: int = 20,
):
    """An answer in which the messages before the question (an instruction, say) count `scale` times: each token's
    logit is the one without them, and `scale` times what they add to it. 1: as the model answers by itself."""
    if not abs(scale) <= MOST:
        sys.exit(f"scale: give a number from -{MOST} to {MOST}")
    draw = random.Random(seed)
    ctx = Context(args.model).fill_chat([*told, {"role": "user", "content": question}])
    without = Context(args.model).fill_chat("user", question)
    more = len(ctx) - len(without)

    async def choose(dist):
        weights = dist.probabilities
        if scale != 1:
            other = await without.fill(ctx.tokens[more + len(without) :]).next_dist(K, temperature)
            plain, least = dict(zip(other.tokens, other.probabilities, strict=True)), other.probabilities[-1]
            pairs = zip(dist.tokens, dist.probabilities, strict=True)
            logits = [
                scale * log(max(p, 1e-30)) + (1 - scale) * log(max(plain.get(token, least), 1e-30))
                for token, p in pairs
            ]
            weights = [exp(logit - max(logits)) for logit in logits]
        return draw.choices(dist.tokens, weights)[0]

    generation = ctx.generate(tokens, sampler=DistSampler(choose, K, temperature))
    await args.stream(generation)
    return generation.text
