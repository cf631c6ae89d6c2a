# status: failed
# error: MemoryError|TypeError
def main(args):
    text = "x"
    while True:
        text += text
