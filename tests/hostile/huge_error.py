# status: failed
# error: (?s)^Traceback.*xxx\n\[\.\.\. \d+ characters, cut to 1048576 bytes \.\.\.\]\nxxx.*the end$
def main(args):
    raise Exception("x" * 4_000_000 + "the end")
