"""The secret of workers that listen, and the addresses that need one."""

from __future__ import annotations

from pathlib import Path

import pytest

from pie_inference.config import Place, parse_options
from pie_inference.errors import ConfigError
from pie_inference.options.address import AddressError, check_address, check_listening_address
from pie_inference.options.secret import SECRET_VARIABLE, SecretError, read_secret

SECRET = "0123456789abcdef" * 2
MODEL = ("--model", "m", "--name", "m")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    return path


def test_a_secret_is_read_from_a_file_of_its_owner_alone(file: Path, tmp_path: Path) -> None:
    assert read_secret(str(file)) == SECRET
    for mode in (0o640, 0o604, 0o620):
        file.chmod(mode)
        with pytest.raises(SecretError, match=f"others can read or change {file}, .*: chmod 600 {file}"):
            read_secret(str(file))
    file.chmod(0o600)
    file.write_text(SECRET[:-1])
    with pytest.raises(SecretError, match="has 31 characters, and 32 random ones are the least: openssl rand"):
        read_secret(str(file))
    file.write_bytes(b"\xff" * 40)
    with pytest.raises(SecretError, match="is no text"):
        read_secret(str(file))
    with pytest.raises(SecretError, match=r"cannot read the secret in .*absent: No such file"):
        read_secret(str(tmp_path / "absent"))


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:8012", "tcp://127.9.9.9:1", "tcp://[::1]:8012"])
def test_addresses_of_this_machine_need_no_secret(address: str) -> None:
    check_listening_address(address, None)


@pytest.mark.parametrize(
    "address", ["tcp://10.0.0.2:8012", "tcp://*:8012", "tcp://0.0.0.0:1", "tcp://host.example:8012", "tcp://[::]:8012"]
)
def test_addresses_that_others_reach_need_one(address: str) -> None:
    check_address(address, SECRET)
    with pytest.raises(AddressError, match=r"needs a secret: .* --secret-file FILE or \$PIE_WORKER_SECRET"):
        check_address(address, None)


@pytest.mark.parametrize(
    "address", ["", "8012", "tcp://host", "udp://1.2.3.4:5", "tcp://h:99999", "ipc://x", "tcp://:1"]
)
def test_what_is_no_address_is_told(address: str) -> None:
    with pytest.raises(AddressError, match="the address of a worker is tcp://HOST:PORT"):
        check_address(address, SECRET)


def test_a_worker_listens_at_numbers_and_reaches_names() -> None:
    check_address("tcp://localhost:8012", None)
    with pytest.raises(AddressError, match="--listen takes a numeric address of this machine"):
        check_listening_address("tcp://localhost:8012", SECRET)


def test_the_file_goes_before_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listen = ("--listen", "tcp://0.0.0.0:8012", *MODEL)
    monkeypatch.setenv(SECRET_VARIABLE, "another secret, of more than 32 characters")
    assert parse_options([*listen, "--secret-file", str(file)]).place == Place("", "tcp://0.0.0.0:8012", SECRET)
    with pytest.raises(ConfigError, match="needs a secret"):
        parse_options(listen)
    monkeypatch.setenv(SECRET_VARIABLE, "short")
    with pytest.raises(ConfigError, match=r"the secret in \$PIE_WORKER_SECRET has 5 characters"):
        parse_options(listen)
