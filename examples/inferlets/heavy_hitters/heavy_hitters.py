import sys
from math import exp

from inferlet_sdk import Pages, inferlet, traits

DECAY = 0.9  # of attention, with each token
PART = 512  # tokens of a prompt that are read together


@inferlet
async def main(
    args, prompt: str = "Once upon a time", text: str = "", max_tokens: int = 80, budget: int = 48, recent: int = 40
):
    """Goes on within a budget of tokens that are in memory: the newest ones, and of the others those that got most
    attention lately (heavy hitters, Zhang et al. 2023). With `text` it reads that, and gives its perplexity."""
    if not prompt or not 0 < recent <= budget:
        sys.exit("give a prompt, and a budget of which `recent` is all or a part")
    queue, model = traits.create_queue(args.model), traits.get_model_info(args.model)
    size, output = model.page_size, traits.alloc_emb(queue)
    tokens, given = traits.tokenize(queue, prompt), traits.tokenize(queue, text)
    pending, *parts = [tokens[start : start + PART] for start in range(0, len(tokens), PART)]
    pages, detokenizer = traits.alloc_kvpage(queue), traits.create_detokenizer(queue)
    attention: list[float] = []  # that each token in memory got
    position, most, loss = 0, 1, 0.0
    for step in range(-len(parts), len(given) or max_tokens):
        if len(attention) + len(pending) > len(pages) * size:
            pages += traits.alloc_kvpage(queue, -(-(len(attention) + len(pending)) // size) - len(pages))
        inputs, positions = traits.alloc_emb(queue, len(pending)), range(position, position + len(pending))
        traits.embed_txt(queue, pending, positions, inputs)
        scores = await traits.forward_with_scores(queue, pages, inputs, pages, output)
        traits.dealloc_emb(queue, inputs)
        attention = [a * DECAY + b for a, b in zip([*attention, *(0.0 for _ in pending)], scores, strict=True)]
        position += len(pending)
        most = max(most, len(pages))
        if parts:
            pending = parts.pop(0)
        elif given:
            loss -= (await traits.get_logprobs(queue, output[0], given[step : step + 1]))[0]
            pending = given[step : step + 1]
        else:
            pending = [(await traits.get_next_dist(queue, output[0], k=1)).max_index()]
            if pending[0] in model.stop_tokens:
                break
            await args.send(traits.push_tokens(detokenizer, pending))
        if len(attention) >= budget + size:
            older = sorted(range(len(attention) - recent), key=attention.__getitem__)
            kept = sorted(older[recent - budget :] if recent < budget else [])
            kept += range(len(attention) - recent, len(attention))
            pages, attention = keep(queue, pages, size, kept), [attention[n] for n in kept]
    return {"tokens": position, "pages": most, "perplexity": exp(loss / len(given)) if given else None}


def keep(queue: int, pages: Pages, size: int, kept: list[int]) -> Pages:
    """Pages with the tokens of these places alone; the others are given back."""
    slots, new = pages.slots(size), traits.alloc_kvpage(queue, -(-len(kept) // size))
    traits.copy_kvpage(queue, [slots[n] for n in kept], new.slots(size)[: len(kept)])
    traits.dealloc_kvpage(queue, pages)
    return new
