# status: failed
# error: ValueError: \\ud800
def main(args):
    raise ValueError("\ud800")
