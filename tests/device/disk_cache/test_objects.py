"""Objects on disk: whole or not at all, shared by processes, within one bound."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from flowedge.core.errors import CapacityError, ProtocolError
from flowedge.device.disk_cache import objects, space
from flowedge.device.disk_cache.limits import CacheLimits
from flowedge.device.disk_cache.lock import try_lock
from flowedge.device.disk_cache.objects import ObjectStore
from flowedge.device.disk_cache.partial import DamagedError, PartialObject
from flowedge.models.quant.quant_cache import CacheKey, QuantCache

import torch  # isort: skip

DATA = os.urandom(100_000)
DIGEST = hashlib.sha256(DATA).hexdigest()
FLIPPED = DATA[:-1] + bytes([DATA[-1] ^ 1])


def other(index: int, size: int = 100_000) -> bytes:
    return bytes([index]) * size


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(CacheLimits(tmp_path / "cache", 1 << 20))


def begin(store: ObjectStore, digest: str = DIGEST, size: int = len(DATA)) -> PartialObject:
    partial = store.begin(digest, size)
    assert partial is not None
    return partial


def age(store: ObjectStore, digest: str, seconds: int) -> None:
    os.utime(store.path(digest), (seconds, seconds))


def test_what_was_cut_off_goes_on_where_it_was(store: ObjectStore) -> None:
    with begin(store) as partial:
        partial.append(DATA[:60_000])
    assert store.size(DIGEST) is None and store.partial_bytes(DIGEST, len(DATA)) == 60_000
    with begin(ObjectStore(store.limits)) as partial:
        assert partial.resume() == 60_000
        partial.append(DATA[60_000:])
        partial.commit()
    assert store.read(DIGEST) == DATA and store.verify(DIGEST)
    assert store.begin(DIGEST, len(DATA)) is None


@pytest.mark.parametrize("sent", [FLIPPED, DATA[:-1], DATA + b"x"], ids=["flipped", "short", "long"])
def test_what_is_something_else_is_thrown_away(store: ObjectStore, sent: bytes) -> None:
    with begin(store) as partial, pytest.raises(DamagedError):
        partial.append(sent)
        partial.commit()
    assert store.size(DIGEST) is None and store.partial_bytes(DIGEST, len(DATA)) == 0


@pytest.mark.parametrize("name", ["", "../" * 10 + "x", "A" * 64, "a" * 63, "a" * 64 + "\n"])
def test_nothing_but_hashes_is_a_name(store: ObjectStore, name: str) -> None:
    with pytest.raises(ProtocolError, match="not a SHA-256"):
        store.begin(name, 1)
    assert not store.limits.root.exists()


def test_damage_is_noticed_and_dropped(store: ObjectStore, caplog: pytest.LogCaptureFixture) -> None:
    store.put(DATA)
    assert store.verify(DIGEST)
    path = store.path(DIGEST)
    path.write_bytes(DATA[:-1] + b"x")
    assert not store.verify(DIGEST)
    assert not path.exists() and "damaged" in caplog.text
    path.write_bytes(b"")
    assert store.read(DIGEST) is None and not path.exists()


def test_only_one_receives_an_object(store: ObjectStore) -> None:
    with begin(store):
        assert ObjectStore(store.limits).begin(DIGEST, len(DATA)) is None
    begin(store).close()


def test_what_another_ends_meanwhile_is_not_received_again(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process moves its file into place after the check whether the object exists."""
    partial = begin(store)
    partial.append(DATA)

    def after_the_other(descriptor: int) -> bool:
        partial.commit()
        partial.close()
        return try_lock(descriptor)

    monkeypatch.setattr(objects, "try_lock", after_the_other)
    assert store.begin(DIGEST, len(DATA)) is None
    assert store.read(DIGEST) == DATA
    assert not store.partial_bytes(DIGEST, len(DATA))


def test_what_was_not_used_for_longest_is_dropped_and_what_is_in_use_stays(store: ObjectStore) -> None:
    digests = [store.put(other(index)) for index in range(10)]
    for index, digest in enumerate(digests):
        age(store, digest, 1000 + index)
    pin = store.pin({digests[0]: 100_000})
    store.put(DATA)
    assert [index for index, digest in enumerate(digests) if store.size(digest) is None] == [1]
    pin.release()
    age(store, digests[0], 1000)
    store.put(other(20))
    assert store.size(digests[0]) is None and store.taken_bytes() <= 1 << 20


def test_no_room_beside_what_is_in_use(store: ObjectStore) -> None:
    digests = [store.put(other(index)) for index in range(10)]
    with begin(store, "0" * 64, 40_000), pytest.raises(CapacityError, match="--cache-gib"):
        pin = store.pin(dict.fromkeys(digests, 100_000))
        store.begin(DIGEST, len(DATA))
    assert all(store.verify(digest) for digest in digests)
    pin.release()


def test_room_is_kept_for_what_is_to_come(store: ObjectStore) -> None:
    old = [store.put(other(index)) for index in range(10)]
    for index, digest in enumerate(old):
        age(store, digest, 1000 + index)
    pin = store.pin({DIGEST: len(DATA), old[9]: 100_000})
    assert [index for index, digest in enumerate(old) if store.size(digest) is None] == [0]
    with pytest.raises(CapacityError, match="--cache-gib"):
        ObjectStore(store.limits).pin({"0" * 64: 900_000})
    assert all(store.size(digest) is not None for digest in old[1:])
    partial = store.begin(DIGEST, len(DATA), reserved=True)
    assert partial is not None
    with partial:
        partial.append(DATA)
        partial.commit()
    assert store.taken_bytes() == 10 * 100_000
    pin.release()
    store.pin({"0" * 64: 900_000}).release()
    assert store.size(DIGEST) is not None and store.taken_bytes() <= 200_000


def test_quantised_weights_have_the_same_bound(store: ObjectStore) -> None:
    digests = [store.put(other(index)) for index in range(10)]
    for index, digest in enumerate(digests):
        age(store, digest, 1000 + index)
    quantised = QuantCache(store.limits.root / "quantised", store.limits.max_bytes)
    key = CacheKey("content", "", "int4", "1")
    quantised.put(key, {"weight": torch.zeros(100_000, dtype=torch.uint8)})
    assert store.size(digests[0]) is None and quantised.get(key) is not None
    for path in quantised.directory.iterdir():
        os.utime(path, (500, 500))
    store.put(DATA)
    assert quantised.get(key) is None and store.size(digests[1]) is not None


def test_a_pin_ends_with_its_process(store: ObjectStore) -> None:
    digest = store.put(DATA)
    program = (
        "import sys, time; from pathlib import Path; "
        "from flowedge.device.disk_cache.limits import CacheLimits; "
        "from flowedge.device.disk_cache.objects import ObjectStore; "
        "pin = ObjectStore(CacheLimits(Path(sys.argv[1]), 1 << 20)).pin({sys.argv[2]: 1}); "
        "print('pinned', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(store.limits.root), digest], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "pinned\n"
        assert store.remove([digest]) == 0 and store.size(digest) is not None
        process.send_signal(signal.SIGKILL)
    assert store.remove([digest]) == len(DATA) and store.size(digest) is None


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_leaves_the_cache_as_it_is(store: ObjectStore, tmp_path: Path) -> None:
    kept = store.put(other(1))
    path = tmp_path / "partial"
    path.write_bytes(b"")
    partial = PartialObject(os.open("/dev/full", os.O_RDWR), path, tmp_path / "object", DIGEST, len(DATA))
    with partial, pytest.raises(CapacityError, match="is full"):
        partial.append(DATA)
    assert not path.exists() and store.verify(kept)


def test_more_than_the_disk_has_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    store = ObjectStore(CacheLimits(tmp_path, 1 << 62))
    kept = store.put(other(1))
    with pytest.raises(CapacityError, match=r"is full: .* MiB are needed"):
        store.begin(DIGEST, 1 << 61)
    assert store.verify(kept) and not list((tmp_path / "partial").iterdir())


def test_a_full_disk_is_described_by_its_true_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ObjectStore(CacheLimits(tmp_path, 1 << 30))
    store.put(other(1))
    usage = SimpleNamespace(free=3 << 20)
    monkeypatch.setattr(space.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(
        CapacityError, match=r"3000 bytes are needed, and of the 3\.0 MiB that are free, 16\.0 MiB"
    ):
        store.begin(DIGEST, 3000)


def test_an_object_that_the_disk_does_not_return_is_fetched_again(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    assert store.put(DATA) == DIGEST
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", fail)
        assert store.read(DIGEST) is None
    assert store.size(DIGEST) is None
    assert store.put(DATA) == DIGEST and store.read(DIGEST) == DATA
