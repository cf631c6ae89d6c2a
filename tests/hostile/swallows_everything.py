# status: exceeded
# error: processor time
def main(args):
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass
