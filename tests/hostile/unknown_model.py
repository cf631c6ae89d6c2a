# status: failed
# error: no model 'gpt-99'
from inferlet_sdk.bindings import core
def main(args):
    core.create_queue("gpt-99")
