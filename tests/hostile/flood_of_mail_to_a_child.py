# status: failed
# error: the child receives slowly
from inferlet_sdk import launch
async def main(args, child=False):
    if child:
        await args.environment["nothing"]
    one = launch(kwargs={"child": True})
    while True:
        one.send("x" * 1_000_000)
