# status: exceeded
# error: processor time
import re
def main(args):
    return re.match("(a+)+$", "a" * 64 + "b")
