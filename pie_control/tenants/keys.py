"""Keys: what a client shows in place of a token of the file of tenants. A key may do less than its tenant, never more.

A key is `pie_` and 43 letters and digits: 37 by chance (220 bits), and 6 that are their checksum, so that what scans
texts for secrets can tell a key from another word. Only its SHA-256 is kept.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string
import zlib

from ..errors import ConfigError

LETTERS = string.digits + string.ascii_letters
PREFIX = "pie_"
RANDOM, CHECKSUM = 37, 6
SHAPE = re.compile(rf"{PREFIX}[{LETTERS}]{{{RANDOM + CHECKSUM}}}")

CAPABILITIES = ("launch", "upload", "http", "adapters", "admin")
"""What a key may do. launch: launch inferlets, speak to them and end them, and use what programs serve, such as
`/v1/chat/completions`. upload: upload and delete programs. http: what it launches may send requests to other servers.
adapters: load and drop adapters. admin: read the numbers of the whole server."""
LASTING = re.compile(r"(\d{1,5})([dhm])")
SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0}


def make_key() -> str:
    """A new key, which nobody can guess."""
    chosen = "".join(secrets.choice(LETTERS) for _ in range(RANDOM))
    return f"{PREFIX}{chosen}{_checksum(chosen)}"


def is_key(text: str) -> bool:
    """Whether this was once made as a key, by whatever server."""
    chosen = text[len(PREFIX) : len(PREFIX) + RANDOM]
    return SHAPE.fullmatch(text) is not None and text.endswith(_checksum(chosen))


def digest_of(key: str) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def _checksum(chosen: str) -> str:
    left, letters = zlib.crc32(chosen.encode()), []
    for _ in range(CHECKSUM):
        left, letter = divmod(left, len(LETTERS))
        letters.append(LETTERS[letter])
    return "".join(letters)


def read_capabilities(text: str) -> tuple[str, ...]:
    """Those that a list with commas names; raises ConfigError."""
    named = {word.strip() for word in text.split(",")} - {""}
    if wrong := sorted(named - set(CAPABILITIES)):
        raise ConfigError(f"there is no capability {wrong[0]!r}; there are: {', '.join(CAPABILITIES)}")
    return tuple(one for one in CAPABILITIES if one in named)


def read_lasting(text: str) -> float:
    """Seconds, of 90d, 12h or 30m; raises ConfigError."""
    found = LASTING.fullmatch(text)
    if found is None or not int(found[1]):
        raise ConfigError(f"a key lasts for days, hours or minutes, as 90d, 12h or 30m, not {text!r}")
    return int(found[1]) * SECONDS[found[2]]
