# status: failed
# error: (?s)^Traceback.*xxx\n\[\.\.\. \d+ bytes, cut to 1048576 \.\.\.\]\nxxx.*the end$
def main(args):
    raise Exception("x" * 4_000_000 + "the end")
