# status: failed
# error: bytes of commands that wait and of results not taken are held
from inferlet_sdk.bindings import allocate, core, forward, input_text, output_text
from inferlet_sdk.errors import call
def main(args):
    first, second = core.create_queue(args.model), core.create_queue(args.model)
    embed = allocate.alloc(first, allocate.Memory.EMB, 2)
    for _ in range(1_000):
        input_text.embed_txt(first, [1], [0], [embed, 1])
    forward.forward(first, [], [embed, 1], [], [embed + 1, 1], [], [], [], "", 0, 0, 0.0, False)
    tokens = [token % 259 for token in range(259)]
    while True:
        call(output_text.get_logprobs, second, [embed + 1, 1], tokens)
