# status: finished
from inferlet_sdk import NotAllowed, RequestFailed, InvalidArgument, gather, http_get
URLS = """http://127.0.0.1/ http://localhost/ http://[::1]/ http://[::ffff:127.0.0.1]/ http://169.254.169.254/latest/meta-data/
http://10.0.0.1/ http://192.168.0.1/ http://172.16.0.1/ http://100.64.0.1/ http://0.0.0.0/ http://0/ http://2130706433/
http://127.1/ http://0x7f000001/ http://[fd00:ec2::254]/ http://[fe80::1]/ http://224.0.0.1/ http://[64:ff9b::7f00:1]/
http://127.0.0.1:22/ http://localhost:8011/v1/inferlets""".split()
async def main(args):
    async def refused(url):
        try:
            await http_get(url)
        except NotAllowed:
            return True
        except RequestFailed as error:  # a name that the system does not know
            return "has no address" in error.message
    assert all(await gather(*(refused(url) for url in URLS[:10])))
    assert all(await gather(*(refused(url) for url in URLS[10:])))
    for url in ("file:///etc/passwd", "http://a@127.0.0.1/", "gopher://127.0.0.1/", "http://127.0.0.1\\@b/"):
        try:
            http_get(url)
            raise AssertionError(url)
        except InvalidArgument:
            pass
