import sys

from inferlet_sdk import inferlet, traits


@inferlet
async def main(args, question: str = "Write three facts about bees.", max_tokens: int = 60):
    """Autoregressive generation call by call, as in section 4.2 of the paper."""
    if max_tokens < 0:
        sys.exit("give a max_tokens of 0 or more")
    queue = traits.create_queue(args.model)
    model = traits.get_model_info(args.model)

    tokens = traits.tokenize_chat(queue, [{"role": "user", "content": question}])
    total = min(len(tokens) + max_tokens, model.max_context)
    inputs = traits.alloc_emb(queue, len(tokens))
    output = traits.alloc_emb(queue)
    pages = traits.alloc_kvpage(queue, -(-total // model.page_size))

    # prefill: the whole prompt at once; the last hidden state goes to `output`
    traits.embed_txt(queue, tokens, range(len(tokens)), inputs)
    traits.forward(queue, context=pages, input_embeds=inputs, output_pages=pages, output_embeds=output)

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
