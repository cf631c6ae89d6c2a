# status: failed|finished|exceeded
from inferlet_sdk.bindings import core, tokenize
def main(args):
    queue = core.create_queue(args.model)
    return len(tokenize.format_chat(queue, "[" * 50_000, "", True))
