# status: finished
"""Every call that takes a list gets one of 20,000 numbers, more than one call takes."""
from inferlet_sdk.bindings import allocate, core, forward, fused, input_text, output_text, tokenize
from inferlet_sdk.errors import InvalidArgument, call

TAKES_MORE = (fused.sample, output_text.get_logprobs, tokenize.detokenize)


def main(args):
    queue = core.create_queue(args.model)
    sampler = fused.create_sampler("{}")
    embed = allocate.alloc(queue, allocate.Memory.EMB, 2)
    input_text.embed_txt(queue, [1], [0], [embed, 1])
    forward.forward(queue, [], [embed, 1], [], [embed + 1, 1], [], [], [], "", 0, 0, 0.0, False)
    many = [1] * 20_000
    calls = [
        (allocate.dealloc, queue, allocate.Memory.KVPAGE, many),
        (allocate.dealloc, queue, allocate.Memory.EMB, many),
        (allocate.copy_kvpage, queue, many, many),
        (allocate.trim_kvpage, queue, many, 1),
        (input_text.embed_txt, queue, many, many, many),
        (forward.forward, queue, many, many, many, many, many, many, many, "", 0, 0, 0.0, False),
        (output_text.get_logprobs, queue, [embed + 1, 1], many),
        (fused.sample, queue, embed + 1, sampler, many, "", 0),
        (fused.verify, queue, many, many, sampler),
        (tokenize.detokenize, queue, many),
    ]
    for function, *arguments in calls:
        try:
            call(function, *arguments)
        except InvalidArgument as error:
            assert "20000" in str(error), error
        else:
            assert function in TAKES_MORE, function
