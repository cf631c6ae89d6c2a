import sys

from inferlet_sdk import inferlet, traits

PART = 2048  # tokens of a prompt that run together


@inferlet
async def main(args, question: str = "Write three facts about bees.", max_tokens: int = 60):
    """Autoregressive generation call by call, as in section 4.2 of the paper."""
    if max_tokens < 0:
        sys.exit("give a max_tokens of 0 or more")
    queue = traits.create_queue(args.model)
    model = traits.get_model_info(args.model)

    tokens = traits.tokenize_chat(queue, [{"role": "user", "content": question}])
    total = min(len(tokens) + max_tokens, model.max_context)
    inputs = traits.alloc_emb(queue, min(len(tokens), PART))
    output = traits.alloc_emb(queue)
    pages = traits.alloc_kvpage(queue, -(-total // model.page_size))

    # prefill: the last hidden state goes to `output`
    for start in range(0, len(tokens), PART):
        part = tokens[start : start + PART]
        used = inputs[: len(part)]
        traits.embed_txt(queue, part, range(start, start + len(part)), used)
        traits.forward(queue, context=pages, input_embeds=used, output_pages=pages, output_embeds=output)

    detokenizer = traits.create_detokenizer(queue)
    for position in range(len(tokens), total):
        dist = await traits.get_next_dist(queue, output[0], k=1)
        token = dist.max_index()
        if token in model.stop_tokens:
            break
        await args.send(traits.push_tokens(detokenizer, [token]))
        traits.embed_txt(queue, [token], [position], inputs[:1])
        traits.forward(queue, context=pages, input_embeds=inputs[:1], output_pages=pages, output_embeds=output)

    traits.dealloc_emb(queue, inputs + output)
    traits.dealloc_kvpage(queue, pages)
    traits.destroy_queue(queue)
