# status: failed
# error: FileNotFoundError|OSError|PermissionError
def main(args):
    return open("/etc/passwd").read()
