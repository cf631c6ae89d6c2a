from inferlet_sdk import inferlet, traits

TOLD = [("My name is Ada.", "Nice to meet you, Ada!"), ("I live in Oslo.", "Oslo sounds nice.")]


@inferlet
async def main(args, sections: list[tuple[str, str]] = TOLD, question: str = "Where do I live?", max_tokens: int = 24):
    """Answers a question on sections, each a text and its summary. A section sees itself, the summaries see their
    sections and each other, and the question sees all. The first token, which opens the text, is seen by all."""
    queue, model = traits.create_queue(args.model), traits.get_model_info(args.model)
    output = traits.alloc_emb(queue)
    roles = [(role, text) for section in sections for role, text in zip(("user", "assistant"), section, strict=True)]
    chat = [{"role": role, "content": text} for role, text in [*roles, ("user", question)]]
    tokens = traits.tokenize_chat(queue, chat)
    if not sections or max_tokens < 1 or len(tokens) >= model.max_context:
        raise ValueError(f"give a section or more, each a text and its summary, {model.max_context} tokens at most")
    ends = [1, *(len(traits.tokenize_chat(queue, chat[:n], (), False)) for n in range(1, len(chat)))]

    def room(count: int):
        return traits.alloc_kvpage(queue, -(-count // model.page_size))

    def run(places, context, pages, mask=None):
        """Runs the tokens at these places, which see the context, into pages."""
        inputs = traits.alloc_emb(queue, len(places))
        traits.embed_txt(queue, [tokens[n] for n in places], places, inputs)
        traits.forward(queue, context, inputs, pages, output, mask=mask)
        traits.dealloc_emb(queue, inputs)

    seen = first = room(1)
    run(range(1), seen, seen)
    summaries, rows = list[int](), list[list[int]]()
    for start, middle, end in zip(ends[::2], ends[1::2], ends[2::2], strict=False):
        pages, column = room(middle - start), start - len(summaries)
        run(range(start, middle), first + pages, pages)
        seen += pages
        summaries += range(middle, end)
        rows += [[0, *range(column, column + middle - start)]] * (end - middle)
    pages, columns = room(len(summaries)), range(ends[-1] - len(summaries), ends[-1])
    run(summaries, seen, pages, [[*row, *columns] for row in rows])
    tail = room(len(tokens) - ends[-1] + max_tokens)
    seen += pages + tail
    run(range(ends[-1], len(tokens)), seen, tail)
    prompt, dists = len(tokens), []
    while len(tokens) < prompt + max_tokens:
        dists.append(await traits.get_next_dist(queue, output[0]))
        if dists[-1].max_index() in model.stop_tokens:
            break
        tokens.append(dists[-1].max_index())
        run(range(len(tokens) - 1, len(tokens)), seen, tail)
    await args.send(traits.detokenize(queue, tokens[prompt:]))
    return dict(zip(dists[0].tokens, dists[0].probabilities, strict=True))
