# status: failed|exceeded
# error: waiting commands|processor time
import json
from inferlet_sdk.bindings import allocate, core, forward, fused, input_text, tokenize
from inferlet_sdk.errors import call
def main(args):
    queue = core.create_queue(args.model)
    embed, page, sampler = allocate.alloc(queue, allocate.Memory.EMB, 2), allocate.alloc(queue, allocate.Memory.RESERVED_KVPAGE, 60), fused.create_sampler("{}")
    text, strings = tokenize.create_detokenizer(queue), ["a" * 60 + chr(98 + n) for n in range(16)]
    options = json.dumps({"stop": strings, "send": True})
    while True:
        call(input_text.embed_txt, queue, [1], [0], [embed, 1])
        call(forward.forward, queue, [], [embed, 1], [], [embed + 1, 1], [], [], [], "", 0, 0, 0.0, False)
        run = call(fused.decode, queue, embed + 1, sampler, embed, 1, [], [page, 60], 900, [], "", 0, 0)
        call(fused.watch_run, run, text, options)
        call(core.cancel, run)
        call(allocate.trim_kvpage, queue, [page, 60], 0)  # what the run has filled before
