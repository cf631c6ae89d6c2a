# status: failed
# error: ctypes
def main(args):
    import ctypes
    ctypes.string_at(0)
