# status: failed
# error: SyntaxError
def main(args:
    return 1
