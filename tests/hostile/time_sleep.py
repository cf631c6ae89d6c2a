# status: finished
import time
def main(args):
    time.sleep(0.3)
    return "slept"
