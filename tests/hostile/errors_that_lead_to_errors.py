# status: failed
# error: ValueError: 2999
def main(args):
    error = None
    for number in range(3000):
        last = ValueError(str(number))
        last.__cause__ = error
        error = last
    raise error
