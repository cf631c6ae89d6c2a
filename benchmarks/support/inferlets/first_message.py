from inferlet_sdk import Args, inferlet


@inferlet
def main(args: Args) -> None:
    args.send("here")
