# status: failed
# error: ValueError: message: character 0 is half of a surrogate pair
def main(args):
    args.send("\ud800")
