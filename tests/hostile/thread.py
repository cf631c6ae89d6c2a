# status: failed
# error: thread|threading
def main(args):
    import threading
    threading.Thread(target=print).start()
