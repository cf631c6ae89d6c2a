# status: failed
# error: ctypes|Type|Attribute|Overflow|int
from inferlet_sdk.bindings import core
def main(args):
    core.wait(["not a number", None, -1])
