# status: exceeded
# error: processor time
def main(args):
    while True:
        print("spam")
