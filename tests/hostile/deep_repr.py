# status: failed
# error: RecursionError
def main(args):
    nested = []
    for _ in range(200_000):
        nested = [nested]
    return repr(nested)
