# status: failed
# error: JSON
def main(args):
    return object()
