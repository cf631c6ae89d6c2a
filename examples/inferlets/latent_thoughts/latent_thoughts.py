import sys

from inferlet_sdk import inferlet, traits

PART = 2048  # tokens of a question that run together


@inferlet
async def main(args, question: str = "What is 4 + 5?", thoughts: int = 4, max_tokens: int = 60):
    """Thinks without words before it answers: the output of the model is its next input, a few times (Hao et al. 2024).
    Gives the probabilities of the first token of the answer, and the pages with all of it."""
    if thoughts < 0 or max_tokens < 0:
        sys.exit("give thoughts and max_tokens of 0 or more")
    queue, model = traits.create_queue(args.model), traits.get_model_info(args.model)
    tokens = traits.tokenize_chat(queue, [{"role": "user", "content": question}])
    start = len(tokens)
    if start + thoughts + max_tokens > model.max_context:
        sys.exit(f"the question, thoughts and max_tokens are more than the {model.max_context} tokens of {args.model}")
    pages = traits.alloc_kvpage(queue, -(-(start + thoughts + max_tokens) // model.page_size))
    inputs, output = traits.alloc_emb(queue, min(start, PART)), traits.alloc_emb(queue)
    for place in range(0, start, PART):
        part = tokens[place : place + PART]
        traits.embed_txt(queue, part, range(place, place + len(part)), inputs[: len(part)])
        traits.forward(queue, pages, inputs[: len(part)], pages, output)

    for position in range(start, start + thoughts):
        traits.set_positions(queue, [position], output)
        traits.forward(queue, pages, output, pages, output)

    first = dist = await traits.get_next_dist(queue, output[0])
    answer: list[int] = []
    while len(answer) < max_tokens and dist.max_index() not in model.stop_tokens:
        answer.append(dist.max_index())
        traits.embed_txt(queue, answer[-1:], [start + thoughts + len(answer) - 1], inputs[:1])
        traits.forward(queue, pages, inputs[:1], pages, output)
        dist = await traits.get_next_dist(queue, output[0])
    await args.send(traits.detokenize(queue, answer))
    return dict(zip(first.tokens, first.probabilities, strict=True))
