# status: failed
# error: no future 999
from inferlet_sdk.bindings import core
def main(args):
    core.wait([999])
    core.await_number(999)
