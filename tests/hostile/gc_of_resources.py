# status: finished
import gc, time
def main(args):
    for _ in range(200):
        time.sleep(0)
    gc.collect()
    return "ok"
