# status: failed
# error: EOFError
def main(args):
    return input("name? ")
