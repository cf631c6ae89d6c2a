# status: exceeded
# error: processor time
def main(args):
    return len(str(10 ** 10 ** 8))
