from collections import Counter

from inferlet_sdk import inferlet, traits


@inferlet
async def main(args, prompt: str = "Once upon a time there was a little dog ", max_tokens: int = 24, budget: int = 24):
    """Generates within a budget of tokens that attention may see: a third are the newest ones, the others those that
    got most attention so far (heavy hitters, Zhang et al. 2023)."""
    queue = traits.create_queue(args.model)
    model = traits.get_model_info(args.model)
    tokens = traits.tokenize(queue, prompt)
    total = len(tokens) + max_tokens
    inputs, output = traits.alloc_emb(queue, len(tokens)), traits.alloc_emb(queue)
    pages = traits.alloc_kvpage(queue, -(-total // model.page_size))
    detokenizer = traits.create_detokenizer(queue)

    visible: list[int] = []  # places of tokens in the pages
    hidden: list[int] = []
    attention: Counter[int] = Counter()  # that each place got
    pending = tokens
    for position in range(len(tokens), total):
        start = position - len(pending)
        traits.embed_txt(queue, pending, range(start, position), inputs[: len(pending)])
        scores = await traits.forward_with_scores(queue, pages, inputs[: len(pending)], pages, output)
        visible += range(start, position)
        attention.update(dict(zip(visible, scores, strict=True)))
        token = (await traits.get_next_dist(queue, output[0], k=1)).max_index()
        if token in model.stop_tokens:
            break
        await args.send(traits.push_tokens(detokenizer, [token]))
        while len(visible) >= budget:
            least = min(visible[: -(budget // 3)], key=attention.__getitem__)
            visible.remove(least)
            hidden.append(least)
        traits.mask_kvpage(queue, pages, sorted(hidden))
        pending = [token]
    return {"seen": len(visible), "hidden": len(hidden)}
