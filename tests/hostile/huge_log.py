# status: finished
def main(args):
    for _ in range(40):
        print("x" * 100_000)
