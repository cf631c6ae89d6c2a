# status: failed
# error: ZeroDivisionError: division by zero
def main(args):
    return 1 / 0
