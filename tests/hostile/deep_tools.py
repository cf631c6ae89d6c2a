# status: finished
"""Nested JSON for the chat template, from deep within the guest's own stack."""
import sys

from inferlet_sdk.bindings import core, tokenize
from inferlet_sdk.errors import InvalidArgument, call

sys.setrecursionlimit(100_000)


def below(levels, do):
    return do() if levels == 0 else max([0], key=lambda _: below(levels - 1, do) or 0)


def main(args):
    queue = core.create_queue(args.model)

    def ask():
        for depth in (9_900, 60_000):
            try:
                tools = '[' + '{"a":' * depth + "1" + "}" * depth + "]"
                call(tokenize.format_chat, queue, '[{"role": "user", "content": "x"}]', tools, True)
            except InvalidArgument as error:
                assert "deeper than" in str(error), error

    below(220, ask)
