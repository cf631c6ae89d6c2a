import random
import sys

from inferlet_sdk import Context, DistSampler, inferlet

K = 256
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
    if not 0 <= alpha <= 1 or temperature <= 0:
        sys.exit("give an alpha from 0 to 1 and a temperature above 0")
    draw = random.Random(seed)
    ctx = Context(args.model).fill_chat(messages)
    other = Context(amateur or args.model).fill_chat(messages if amateur else messages[-1:])
    more = len(ctx) - len(other)

    async def choose(dist):
        pairs = zip(dist.tokens, dist.probabilities, strict=True)
        plausible = {token: p for token, p in pairs if p >= alpha * dist.probabilities[0]}
        if beta and len(plausible) > 1:
            weak = await other.fill(ctx.tokens[more + len(other) :]).next_dist(K)
            known = dict(zip(weak.tokens, weak.probabilities, strict=True))
            least = weak.probabilities[-1]
            plausible = {
                token: p ** (1 + beta) / max(known.get(token, least), 1e-9) ** beta for token, p in plausible.items()
            }
        best = max(plausible.values())
        return draw.choices(list(plausible), [(p / best) ** (1 / temperature) for p in plausible.values()])[0]

    generation = ctx.generate(tokens, sampler=DistSampler(choose, K))
    await args.stream(generation)
    return generation.text
