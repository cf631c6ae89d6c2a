# status: refused
# error: SyntaxError
def main(args:
    return 1
