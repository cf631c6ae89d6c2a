# status: failed
# error: UnicodeEncodeError.*surrogates
def main(args):
    args.send("\ud800")
