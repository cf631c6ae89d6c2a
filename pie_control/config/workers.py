"""What the setting `worker` names: workers of other machines, and stand-ins for a GPU; and the secret of the former."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pie_control.errors import ConfigError
from pie_inference.options import OptionError
from pie_inference.options.address import AddressError, check_address
from pie_inference.options.pace import parse_pace
from pie_inference.options.secret import SECRET_VARIABLE, SecretError, check_secret, read_secret

PACED = "paced:"
"""What a worker that is no model begins with; behind it stands its pace."""
REMOTE = "tcp://"
"""What the address of a worker begins with that is started by hand."""


def check_workers(workers: Sequence[str]) -> None:
    """Raises ConfigError for what is neither."""
    for worker in workers:
        if not worker.startswith((PACED, REMOTE)):
            raise ConfigError(
                f"worker must be tcp://HOST:PORT of a `pie worker`, or paced:TIME, such as paced:15ms, not {worker!r}"
            )
        if workers.count(worker) > 1:
            raise ConfigError(f"worker {worker} is given twice: each serves once")
    paces = [worker for worker in workers if worker.startswith(PACED)]
    if len(paces) > 1:
        raise ConfigError(f"worker: {paces[0]} and {paces[1]} cannot be together: give one of them")
    try:
        if paces:
            parse_pace(pace_of(paces))
    except OptionError as error:
        raise ConfigError(f"worker: {error}") from None


def pace_of(workers: Sequence[str]) -> str:
    """How long waves take, where workers stand in for a GPU; empty: they run models."""
    return next((one.removeprefix(PACED) for one in workers if one.startswith(PACED)), "")


def remote_of(workers: Sequence[str]) -> tuple[str, ...]:
    """Addresses of workers that are started by hand."""
    return tuple(one for one in workers if one.startswith(REMOTE))


def given_secret(environment: Mapping[str, str]) -> str | None:
    """The secret in the environment. Raises ConfigError."""
    secret = environment.get(SECRET_VARIABLE)
    try:
        if secret is not None:
            check_secret(secret, f"${SECRET_VARIABLE}")
    except SecretError as error:
        raise ConfigError(str(error)) from None
    return secret


def find_secret(given: str | None, file: str, addresses: Sequence[str]) -> str | None:
    """The secret of workers at these addresses: that in the file, or else the given one. Raises ConfigError, also for
    an address that must not be without one."""
    try:
        secret = read_secret(file) if file else given
        for address in addresses:
            check_address(address, secret)
    except (SecretError, AddressError) as error:
        raise ConfigError(str(error)) from None
    return secret
