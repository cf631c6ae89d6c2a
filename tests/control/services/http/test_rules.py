"""Which servers and addresses may be asked."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from pie_control.errors import ConfigError, NotAllowed, Unsupported
from pie_control.services.http.rules import AllowList, why_not_public

NOT_PUBLIC = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.8.8.8",
    "169.254.169.254",
    "169.254.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.7",
    "203.0.113.9",
    "224.0.0.1",
    "239.1.1.1",
    "240.0.0.1",
    "255.255.255.255",
    "168.63.129.16",
    "192.88.99.1",
    "::",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "::ffff:169.254.169.254",
    "64:ff9b::7f00:1",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::1",
    "2002:a00:1::",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "3fff::1",
    "4000::1",
    "::127.0.0.1",
    "5f00::1",
]
PUBLIC = [
    "8.8.8.8",
    "1.1.1.1",
    "172.32.0.1",
    "172.15.255.255",
    "100.128.0.1",
    "11.0.0.1",
    "223.255.255.1",
    "2606:4700::1111",
    "2a00:1450::1",
]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_special_addresses_are_not_public(address: str) -> None:
    assert why_not_public(ip_address(address))
    with pytest.raises(NotAllowed, match="only if the operator names the address itself, with --http-allow"):
        AllowList(["*", "*:*"]).check_address("some.name", ip_address(address), 443)


@pytest.mark.parametrize("address", PUBLIC)
def test_others_are(address: str) -> None:
    assert why_not_public(ip_address(address)) is None
    AllowList(["*"]).check_address("some.name", ip_address(address), 443)


@pytest.mark.parametrize(
    ("entry", "host", "port", "allowed"),
    [
        ("api.example.com", "api.example.com", 443, True),
        ("API.example.com", "api.example.com", 80, True),
        ("api.example.com", "api.example.com.", 443, True),
        ("api.example.com", "api.example.com", 8080, False),
        ("api.example.com", "example.com", 443, False),
        ("api.example.com", "evil-api.example.com", 443, False),
        ("api.example.com", "api.example.com.evil.net", 443, False),
        ("api.example.com:8443", "api.example.com", 8443, True),
        ("api.example.com:8443", "api.example.com", 443, False),
        ("api.example.com:*", "api.example.com", 1, True),
        ("*.example.org", "a.example.org", 443, True),
        ("*.example.org", "a.b.example.org", 443, True),
        ("*.example.org", "example.org", 443, False),
        ("*.example.org", "evilexample.org", 443, False),
        ("*", "anything", 443, True),
        ("*", "anything", 22, False),
        ("10.0.0.0/8", "10.1.2.3", 80, True),
        ("10.0.0.0/8", "11.1.2.3", 80, False),
        ("10.0.0.0/8", "internal.name", 80, False),
        ("127.0.0.1:8000", "127.0.0.1", 8000, True),
        ("127.0.0.1:8000", "127.0.0.1", 8001, False),
        ("127.0.0.1:8000", "localhost", 8000, False),
        ("[::1]:8000", "::1", 8000, True),
        ("::1", "::1", 443, True),
        ("fd00::/8", "fd12::1", 443, True),
        ("[fd00::/8]:99", "fd12::1", 99, True),
        ("[fd00::]/8:99", "fd12::1", 99, True),
    ],
)
def test_an_entry_names_hosts_and_ports(entry: str, host: str, port: int, allowed: bool) -> None:
    names = AllowList([entry])
    if allowed:
        names.check_host(host, port)
    else:
        with pytest.raises(NotAllowed, match="the operator can allow them with --http-allow"):
            names.check_host(host, port)


def test_a_named_address_may_be_reached_at_its_port_alone() -> None:
    names = AllowList(["localhost:8000", "127.0.0.0/8:8000"])
    names.check_host("localhost", 8000)
    names.check_address("localhost", ip_address("127.0.0.1"), 8000)
    for address, port in (("127.0.0.1", 8001), ("10.0.0.1", 8000), ("::1", 8000), ("::ffff:7f00:1", 8000)):
        with pytest.raises(NotAllowed, match=f"localhost is at {ip_address(address)}"):
            names.check_address("localhost", ip_address(address), port)


def test_a_name_alone_allows_no_private_address() -> None:
    with pytest.raises(NotAllowed, match=r"an address of this machine.*with --http-allow 127.0.0.1:8000"):
        AllowList(["localhost:8000"]).check_address("localhost", ip_address("127.0.0.1"), 8000)


def test_nothing_is_allowed_by_default() -> None:
    with pytest.raises(
        Unsupported, match=r"makes no outgoing HTTP requests.*--http-allow api\.example\.com"
    ) as refused:
        AllowList([]).check_host("api.example.com", 443)
    assert refused.value.code == "unsupported"


@pytest.mark.parametrize(
    "entry",
    ["", " ", "https://a.b", "a.b/path", "a b", "a.b:0", "a.b:70000", "a.b:x", "a*.b", "*.", "*b", "1.2.3",
     "10.0.0.1/8", "[a.b]:1", "user@a.b", "-a.b", "::1:zz", "300.1.1.1", "*.*.a"],
)  # fmt: skip
def test_what_is_no_entry_is_refused_with_examples(entry: str) -> None:
    with pytest.raises(ConfigError, match=r"http_allow: .* is no server that can be allowed; give api\.example\.com"):
        AllowList([entry])
