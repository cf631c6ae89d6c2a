# status: finished
from inferlet_sdk.bindings import core
from inferlet_sdk.errors import InvalidArgument, call
def main(args):
    for _ in range(3):
        for function in (core.create_queue, core.get_model_info):
            try:
                call(function, "\N{GRINNING FACE}" * 1_000_000)
            except InvalidArgument as error:
                assert len(str(error)) < 1_000, error
