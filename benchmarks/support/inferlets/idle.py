from inferlet_sdk import Args, inferlet


@inferlet
async def main(args: Args) -> None:
    args.send("here")
    await args.receive()
