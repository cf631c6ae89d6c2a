# status: finished
from inferlet_sdk.bindings import core, tokenize
from inferlet_sdk.errors import call


def main(args):
    queue = core.create_queue(args.model)
    for depth in (500, 900, 5_000, 100_000):
        messages = '[{"role": "user", "content": ' + "[" * depth + "]" * depth + "}]"
        try:
            call(tokenize.format_chat, queue, messages, "", True)
        except Exception as error:
            print(depth, str(error)[:100])
