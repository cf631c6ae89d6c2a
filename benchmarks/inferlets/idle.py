from inferlet_sdk import inferlet


@inferlet
async def main(args):
    args.send("here")
    await args.receive()
