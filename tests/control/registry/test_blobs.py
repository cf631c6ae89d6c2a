"""Uploaded blobs are kept for a while, within bounds."""

from __future__ import annotations

import asyncio

import pytest

from pie_control import host_memory
from pie_control.errors import BadRequest, Overloaded, StorageFull, UnknownName
from pie_control.host_memory import TenantBytes
from pie_control.registry import blobs as module
from pie_control.registry.blobs import BLOB_BYTES, KEPT_SECONDS, BlobStore
from tests.helpers.guard import HANG_SECONDS


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def put(store: BlobStore, data: bytes) -> str:
    return asyncio.run(store.put(data))


def test_a_blob_is_found_under_the_name_that_a_launch_gives_it() -> None:
    store = BlobStore(100, TenantBytes(1, "of blobs"), "alice")
    one, two = put(store, b"one"), put(store, b"two")
    assert store.find({"a": one, "b": two, "c": one}) == {"a": b"one", "b": b"two", "c": b"one"}
    assert put(store, b"one") == one


def test_blobs_that_nobody_uses_are_dropped() -> None:
    store, clock = BlobStore(100, TenantBytes(1, "of blobs"), "alice", clock := Clock()), clock
    old, used = put(store, b"old"), put(store, b"used")
    clock.now = KEPT_SECONDS - 1
    store.find({"used": used})
    clock.now = KEPT_SECONDS + 1
    put(store, b"new")
    assert store.find({"used": used})
    with pytest.raises(UnknownName, match="upload it again; blobs are kept 10 minutes"):
        store.find({"old": old})


def test_a_blob_that_has_expired_is_unknown_whether_or_not_another_one_comes() -> None:
    store, clock = BlobStore(100, TenantBytes(1, "of blobs"), "alice", clock := Clock()), clock
    old = put(store, b"old")
    clock.now = KEPT_SECONDS + 1
    with pytest.raises(UnknownName):
        store.find({"old": old})


def test_blobs_go_in_time_if_no_other_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_SECONDS", 0.0)

    async def check() -> None:
        store = BlobStore(100, TenantBytes(1, "of blobs"), "alice")
        async with asyncio.timeout(HANG_SECONDS):
            await store.put(b"one")
            while store._kept:
                await asyncio.sleep(0)
        assert store._bytes == 0

    asyncio.run(check())


def test_many_small_blobs_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 10_000)
    store = BlobStore(100, TenantBytes(1, "of blobs"), "alice")
    for number in range(100):
        put(store, b"%d" % number)
    assert len(store._kept) < 20


def test_those_used_longest_ago_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 10)
    monkeypatch.setattr(module, "BLOB_BYTES", 0)
    store = BlobStore(6, TenantBytes(1, "of blobs"), "alice")
    first, second = put(store, b"11111"), put(store, b"22222")
    store.find({"first": first})
    third = put(store, b"333")
    assert store.find({"third": third}) == {"third": b"333"}
    assert store.find({"first": first})
    with pytest.raises(UnknownName):
        store.find({"second": second})


def test_what_no_inferlet_could_hold_is_refused() -> None:
    store = BlobStore(10, TenantBytes(1, "of blobs"), "alice")
    with pytest.raises(StorageFull, match=r"the blob has 11 bytes, more than 10 \(see --max-blob-bytes\)"):
        put(store, bytes(11))
    one = put(store, bytes(6))
    with pytest.raises(BadRequest, match="the blobs have 12 bytes, more than 10"):
        store.find({"a": one, "b": one})
    with pytest.raises(BadRequest, match="65 blobs are more"):
        store.find({str(n): one for n in range(65)})
    for name in ("", "n" * 129):
        with pytest.raises(BadRequest, match="1 to 128 characters"):
            store.find({name: one})


def test_blobs_of_all_tenants_are_bounded_and_those_of_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "machine_memory", lambda: 4 * (BLOB_BYTES + 100))
    memory = TenantBytes(1, "of blobs")
    alice, bob, carol = (BlobStore(100, memory, name) for name in ("alice", "bob", "carol"))
    first, second, third = (put(alice, number * 100) for number in (b"1", b"2", b"3"))
    with pytest.raises(UnknownName):
        alice.find({"a": first})
    put(bob, b"4" * 100)
    put(bob, b"5" * 100)
    with pytest.raises(Overloaded, match="of blobs"):
        put(carol, b"6" * 100)
    assert len(alice.find({"b": second})) == len(alice.find({"c": third})) == 1
