# status: failed
# error: OSError|PermissionError|FileNotFoundError
def main(args):
    open("/tmp/x", "w").write("x")
