# status: failed
# error: 16 requests are open
from inferlet_sdk import http_get
async def main(args):
    held = []
    while True:
        held.append(http_get("http://127.0.0.1/"))
