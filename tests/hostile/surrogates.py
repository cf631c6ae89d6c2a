# status: failed
# error: UnicodeEncodeError|surrogates
from inferlet_sdk.bindings import core
def main(args):
    core.send("\ud800")
