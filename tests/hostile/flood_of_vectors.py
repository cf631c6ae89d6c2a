# status: failed
# error: bytes of commands that wait and of results not taken are held|futures are open
from inferlet_sdk.bindings import allocate, core, embedding, forward, input_text
from inferlet_sdk.errors import call
def main(args):
    queue = core.create_queue(args.model)
    embeds = allocate.alloc(queue, allocate.Memory.EMB, 65)
    for place in range(64):
        input_text.embed_txt(queue, [1], [place], [embeds + place, 1])
    forward.forward(queue, [], [embeds, 64], [], [embeds + 64, 1], [], [], [], "", 0, 0, 0.0, False)
    while True:
        call(embedding.get_embedding, queue, [embeds + 64, 1], "mean", 0, True)
