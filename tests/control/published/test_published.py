"""Published versions of the API: what was built for one keeps running. Each folder beside this file has a component
that was built for that version, and what it said then."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import wasmtime
from wasmtime.component import Component

import tests.helpers.wit as wit
from pie_control import host_api
from pie_control.calls.values import Done
from pie_control.errors import CallError, ConfigError, InvalidState
from pie_control.host_api import core, published, wit_files
from pie_control.host_api.guest import Guest
from pie_control.sandbox.components import signature
from pie_control.sandbox.contract import Contract, Edition
from pie_control.sandbox.engine import LinkError, new_engine
from pie_control.sandbox.linker import LinkedComponent
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers import whole_world
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import Listener, started

HERE = Path(__file__).parent
VERSIONS = sorted(folder.name for folder in HERE.iterdir() if (folder / "component.wasm").exists())
LIMITS = {
    "max_pages": 40,
    "max_embeds": 1000,
    "max_queues": 5,
    "max_futures": 50,
    "memory_bytes": 64 << 20,
    "cpu_seconds": 60.0,
}
ENGINE = new_engine()
CONTRACT = host_api.contract()
EDITIONS = {edition.version: edition for edition in CONTRACT.editions}


def series(version: str) -> str:
    return version.rpartition(".")[0]


def test_every_series_has_its_files() -> None:
    folders = {folder.name for folder in (wit.WIT_FOLDER / "published").iterdir()}
    assert set(EDITIONS) == folders | {wit_files.current().version}
    assert set(map(series, EDITIONS)) == set(map(series, VERSIONS))
    assert [version for version, _ in published.OLDER] == sorted(folders, reverse=True)


# ---- types ----


def stored_signatures(version: str) -> dict[tuple[str, str], str]:
    """All types of a version, as wasmtime read them from a component that componentize-py had built for it."""
    found = json.loads((HERE / version / "signatures.json").read_text())
    return {(name.partition(".")[0], name.partition(".")[2]): text for name, text in found.items()}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_function_that_was_published_is_offered_with_the_type_that_it_had(version: str) -> None:
    linked(CONTRACT, version, stored_signatures(version))


def test_the_published_files_of_0_1_are_what_was_published() -> None:
    assert dict(EDITIONS["0.1.0"].signatures) == stored_signatures("0.1.0")


def test_the_newest_version_has_the_types_that_wasmtime_reads(
    guest_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the Python guest, which imports everything, and which every server checks at its start."""
    found = {}

    def check(_contract: Contract, engine: wasmtime.Engine, component: Component) -> None:
        for interface, extern in component.type.imports(engine).items():
            kind: Any = extern.ty
            for name, item in kind.exports(engine).items() if interface.startswith("pie:inferlet/") else ():
                if hasattr(item.ty, "params"):
                    found[interface.removeprefix("pie:inferlet/").partition("@")[0], name] = signature(item.ty)

    async def start() -> None:
        async with started(guest_cache, InProcessClient(FakeModel()), warm_pool=0):
            pass

    monkeypatch.setattr(Contract, "check", check)
    asyncio.run(start())
    assert found == dict(wit_files.current().signatures)


def test_a_server_does_not_start_with_a_guest_of_another_world(
    guest_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start() -> None:
        async with started(guest_cache, InProcessClient(FakeModel()), warm_pool=0):
            raise AssertionError("it started")

    later = [Edition("0.3.0", EDITIONS["0.1.0"].signatures, EDITIONS["0.1.0"].functions)]
    monkeypatch.setattr(host_api, "contract", lambda: Contract("pie:inferlet", later))
    with pytest.raises(ConfigError, match=r"the Python guest does not fit this server: imports pie:inferlet/.*0\.3\.0"):
        asyncio.run(start())


def linked(contract: Contract, version: str, signatures: Mapping[tuple[str, str], str]) -> None:
    """Checks and links a component that imports these functions."""
    component = Component(ENGINE, whole_world.component(version, signatures))
    contract.check(ENGINE, component)
    missing: list[tuple[str, str]] = []

    def find(interface: str, name: str) -> Any:
        found = contract.function(interface, name)
        if found is None:
            missing.append((interface, name))
        return found

    LinkedComponent(ENGINE, component, find, {}, lambda *_: None, lambda: None)
    assert missing == []


@pytest.mark.parametrize("version", EDITIONS)
def test_every_function_of_the_files_is_offered_with_its_type(version: str) -> None:
    linked(CONTRACT, version, EDITIONS[version].signatures)


@pytest.mark.parametrize("version", EDITIONS)
def test_another_type_is_refused_and_named(version: str) -> None:
    for (interface, name), text in EDITIONS[version].signatures.items():
        changed = text.replace("func(", "func(u8, " if "func()" not in text else "func(u8")
        with pytest.raises(LinkError) as caught:
            linked(CONTRACT, version, {(interface, name): changed})
        assert str(caught.value) == (
            f"imports `{name}` of pie:inferlet/{interface}@{version} as {changed}, this server has {text}"
        )


def test_types_of_one_version_do_not_pass_for_another() -> None:
    old, new = stored_signatures("0.1.0"), stored_signatures("0.2.0")
    changed = {name for name, text in old.items() if text != new[name]}
    assert set(published.v0_1.ADAPTERS) <= changed
    for name in changed:
        with pytest.raises(LinkError):
            linked(CONTRACT, "0.2.0", {name: old[name]})


def test_a_component_for_an_earlier_version_of_a_series_is_linked_to_the_newest() -> None:
    functions, signatures = CONTRACT.editions[0].functions, CONTRACT.editions[0].signatures
    later = Contract("pie:inferlet", [Edition("1.4.2", signatures, functions), Edition("0.3.5", signatures, functions)])
    for version in ("1.4.2", "1.4.0", "1.0.9", "0.3.0", "0.3.5"):
        linked(later, version, signatures)
    for version in ("1.4.3", "1.5.0", "2.0.0", "0.3.6", "0.2.0", "0.4.0"):
        with pytest.raises(LinkError, match=r"this server offers pie:inferlet in the versions 0\.3\.5, 1\.4\.2"):
            linked(later, version, signatures)


@pytest.mark.parametrize("interface", ["pie:inferlet/core", "pie:inferlets/core@0.1.0", "core"])
def test_an_import_without_package_or_version_is_refused(interface: str) -> None:
    component = Component(ENGINE, f'(component (import "{interface}" (instance (export "now" (func (result u64))))))')
    with pytest.raises(LinkError, match=f"imports {interface}"):
        CONTRACT.check(ENGINE, component)


# ---- what components of a version see ----


def said(cache_dir: Path, version: str) -> list[str]:
    """The messages of the stored component, which must finish."""

    async def check() -> list[str]:
        client = InProcessClient(FakeModel(num_pages=64))
        async with started(cache_dir, client, warm_pool=0, **LIMITS) as server, asyncio.timeout(HANG_SECONDS):
            await server.upload((HERE / version / "component.wasm").read_bytes(), "component")
            listener = Listener()
            inferlet = await server.launch("component", ["first", "second"], listener=listener)
            inferlet.send("Grüße, 世界")
            ended = await listener.ended
            assert (ended.status, ended.result) == ("finished", "done"), (ended, listener.messages)
            return listener.messages

    return asyncio.run(check())


def keeps(then: Any, now: Any) -> bool:
    """Whether a JSON value has all that it had: objects and lists may have more. `cpu_nanoseconds` is never the
    same, and versions of traits grow."""
    if isinstance(then, dict):
        free = ("cpu_nanoseconds", "version")
        return set(then) <= set(now) and all(keeps(then[key], now[key]) for key in then if key not in free)
    if isinstance(then, list):
        named = {item["name"]: item for item in now if isinstance(item, dict)}
        return all(keeps(item, named.get(item["name"], {})) if isinstance(item, dict) else item in now for item in then)
    return bool(then == now)


def same(then: str, now: str) -> bool:
    topic, _, text = then.partition(" ")
    if text[:1] in ("{", "["):
        return now.partition(" ")[0] == topic and keeps(json.loads(text), json.loads(now.partition(" ")[2]))
    return then == now


@pytest.mark.parametrize("version", VERSIONS)
def test_a_component_does_what_it_did(version: str, guest_cache: Path) -> None:
    expected = json.loads((HERE / version / "expected.json").read_text())
    messages = said(guest_cache, version)
    assert len(messages) == len(expected)
    assert [now for then, now in zip(expected, messages, strict=True) if not same(then, now)] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_the_stored_component_uses_what_changed(version: str) -> None:
    component = Component(ENGINE, (HERE / version / "component.wasm").read_bytes())
    used = {interface.partition("/")[2].partition("@")[0] for interface in component.type.imports(ENGINE)}
    assert used == {"types", "core", "tokenize", "allocate", "input-text", "forward", "fused"}
    (source,) = (HERE / version).glob("*.wat")
    assert f"@{version}" in source.read_text()
    wasmtime.wat2wasm(source.read_text())


# ---- adapters ----


def replace_send(monkeypatch: pytest.MonkeyPatch, give: Callable[[Guest, str], int | None]) -> None:
    give.__module__, give.__name__ = core.__name__, "send"
    monkeypatch.setattr(core, "send", give)


def test_a_send_that_gives_a_future_is_awaited_for_guests_of_0_1(
    guest_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []

    def send(guest: Guest, message: str) -> int | None:
        guest.inferlet.put_message(message)
        future = guest.futures.new()
        sent.append(future)
        if len(sent) % 2:
            guest.inferlet.resolve(future, Done())
        else:
            guest.inferlet.resolve_later(future, Done(), time.monotonic_ns() + 1_000_000)
        return future

    expected = json.loads((HERE / "0.1.0" / "expected.json").read_text())
    replace_send(monkeypatch, send)
    assert said(guest_cache, "0.1.0") == expected  # `usage` among it: no future stays behind
    assert len(sent) == len(expected)


def test_a_send_that_fails_later_is_refused_for_guests_of_0_1(
    guest_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[CallError] = []

    def send(guest: Guest, message: str) -> int | None:
        future = guest.futures.new()
        failures.append(InvalidState("the client is gone"))
        guest.inferlet.resolve_later(future, failures[-1], time.monotonic_ns() + 1_000_000)
        return future

    replace_send(monkeypatch, send)
    with pytest.raises(AssertionError, match="unreachable"):  # the component traps if it cannot send
        said(guest_cache, "0.1.0")
    assert len(failures) == 1
