# status: failed
# error: 16 requests are open
from inferlet_sdk import http_get
async def main(args):
    while True:
        http_get("http://localhost/").cancel()
