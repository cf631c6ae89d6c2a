# status: exceeded
# error: processor time
def main(args):
    while True:
        pass
