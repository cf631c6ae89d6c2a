# status: failed
# error: 64 subscriptions exist
from inferlet_sdk import subscribe
async def main(args):
    held = []
    while True:
        held.append(subscribe(f"topic {len(held)}"))
