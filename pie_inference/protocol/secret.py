"""The secret that a control process and its worker share where others can reach the socket between them.

The key pair of the control process follows from the secret. A worker that does not know the secret cannot find the
public key, without which ZeroMQ's CURVE mechanism lets it say nothing; a control process that does not know it cannot
read what a worker says. So the handshake proves both, and what follows is encrypted.
"""

from __future__ import annotations

import hashlib

SECRET_VARIABLE = "PIE_WORKER_SECRET"
"""The environment variable in which a worker gets it: command lines can be read by all users of a machine."""
LEAST_CHARACTERS = 32


def control_key(secret: str) -> bytes:
    """The private key of the control process, 32 bytes. Raises ValueError for a secret that could be guessed."""
    if len(secret) < LEAST_CHARACTERS:
        raise ValueError(
            f"the secret of a worker ({SECRET_VARIABLE}) has {len(secret)} characters; {LEAST_CHARACTERS} random ones "
            "are the least: openssl rand -hex 32"
        )
    return hashlib.blake2b(secret.encode(), digest_size=32, person=b"pie-control").digest()
