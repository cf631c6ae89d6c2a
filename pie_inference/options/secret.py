"""The secret that a server and its workers share where others can reach the socket between them.

The key pair of a worker that listens follows from the secret. A server that does not know the secret cannot find the
public key, without which ZeroMQ's CURVE mechanism lets it say nothing; a worker that does not know it cannot read what
a server says. So the handshake proves both, and what follows is encrypted.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

SECRET_VARIABLE = "PIE_WORKER_SECRET"
"""The environment variable in which it may stand: command lines can be read by all users of a machine."""
LEAST_CHARACTERS = 32
ADVICE = "openssl rand -hex 32 makes one"
SOURCES = f"--secret-file FILE or ${SECRET_VARIABLE}"


class SecretError(ValueError):
    """A secret that is none, or that others could know. The message says what to do."""


def read_secret(file: str) -> str:
    """The secret in a file, without white space around it. Raises SecretError."""
    path = Path(file).expanduser()
    try:
        with path.open("rb") as opened:
            _check_private(path, os.fstat(opened.fileno()))
            secret = opened.read().decode().strip()
    except OSError as error:
        raise SecretError(f"cannot read the secret in {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SecretError(f"the secret in {path} is no text: {ADVICE}") from None
    check_secret(secret, str(path))
    return secret


def _check_private(path: Path, status: os.stat_result) -> None:
    if os.name != "posix":
        return
    if status.st_uid not in (os.geteuid(), 0):
        raise SecretError(f"{path} belongs to another user, who knows the secret in it: make a file of your own")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise SecretError(f"others can read or change {path}, which has a secret: chmod 600 {path}")


def check_secret(secret: str, where: str) -> None:
    """Raises SecretError for a secret that could be guessed. `where` it stands."""
    if len(secret) < LEAST_CHARACTERS:
        raise SecretError(
            f"the secret in {where} has {len(secret)} characters, and {LEAST_CHARACTERS} random ones are the least: "
            f"{ADVICE}"
        )


def worker_key(secret: str) -> bytes:
    """The private key of the workers that know a secret, 32 bytes."""
    return hashlib.blake2b(secret.encode(), digest_size=32, person=b"pie-worker").digest()
