# status: failed
# error: the value of A has line ends
from inferlet_sdk import http_get
async def main(args):
    await http_get("http://127.0.0.1/", headers={"A": "b\r\nHost: internal"})
