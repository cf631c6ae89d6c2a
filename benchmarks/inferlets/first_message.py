from inferlet_sdk import inferlet


@inferlet
def main(args):
    args.send("here")
