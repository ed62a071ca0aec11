"""Four devices with empty disks load models over a faulty link, each object once."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowedge.client import Client
from flowedge.client.assembly import PipelineSpec, assemble, release
from flowedge.core.errors import FlowEdgeError
from flowedge.core.sampling import SamplingParams
from flowedge.device.disk_cache.digest import digest_of
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import eos_token_ids
from flowedge.models.files.weight_file import WeightFile, byte_view
from flowedge.weights.importing import import_model
from flowedge.weights.local_weights import LocalWeights
from tests.support.processes import start_all
from tests.weights.bad_link import BadLink
from tests.weights.big_checkpoint import write_checkpoint
from tests.weights.empty_device import EmptyDevice

SIZE_VARIABLE = "FLOWEDGE_TEST_WEIGHTS_BYTES"  # 2e9 for the run that docs/weights.md tells of
SIZE = int(float(os.environ.get(SIZE_VARIABLE, "50e6")))
PROMPT, TOKENS = "Tell me a story about a fox.", 12


@pytest.fixture
def devices(tmp_path: Path) -> Iterator[list[EmptyDevice]]:
    made = [EmptyDevice(name, tmp_path) for name in ("giver", "d0", "v1", "v2", "v3")]
    try:
        yield made
    finally:
        for device in made:
            device.kill()
            device.remove()


def load(cluster: list[EmptyDevice], model: str) -> None:
    addresses = [device.address for device in cluster]
    assemble(
        PipelineSpec(draft_node=addresses[0], stages=tuple(addresses[1:]), model=f"sha256:{model}"),
        lambda *_: None,
    )


def generate(cluster: list[EmptyDevice]) -> tuple[list[int], list[int]]:
    with Client(cluster[0].address, timeout_s=120) as client:
        result = client.generate(PROMPT, max_new_tokens=TOKENS, temperature=0.0, strategy="autoregressive")
        done = result.result()
    return list(done.prompt_ids), list(done.token_ids)


def assert_same_bytes(cluster: list[EmptyDevice], checkpoint: Checkpoint) -> None:
    """Every tensor of the model is on the devices, bit for bit."""
    wanted = {
        digest_of(bytes(byte_view(file[name][...].contiguous())))
        for file in checkpoint.files
        if isinstance(file, WeightFile)
        for name in file
    }
    found: set[str] = set()
    for device in cluster:
        store = LocalWeights.configured(str(device.cache), None).store
        held = [digest for digest in store if digest in wanted]
        assert all(store.verify(digest) for digest in held)
        assert len(held) < len(wanted), "a device has more than its part"
        found.update(held)
    assert found == wanted


UNDER_WAY = 20_000_000  # bytes of the streams that were cut off or whose device was killed


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_models_come_over_a_bad_link_bit_for_bit_and_once(tmp_path: Path, devices: list[EmptyDevice]) -> None:
    giver, *cluster = devices
    directory = tmp_path / "big"
    write_checkpoint(directory, SIZE)
    local = LocalWeights.configured(str(giver.cache), None)
    bundled, big = (
        import_model(local, source, hub=False, on_transfer=lambda *_: None)
        for source in ("bundled", str(directory))
    )
    start_all([giver])
    with BadLink(giver.address) as link:
        for device in cluster:
            device.ask([link.address])
        start_all(cluster)

        load(cluster, bundled)
        prompt_ids, small_tokens = generate(cluster)
        reference = ReferenceModel.load("bundled", "none")
        expected = reference.generate(
            prompt_ids, SamplingParams(), TOKENS, eos_token_ids(Checkpoint.open("bundled"))
        )
        assert small_tokens == list(expected.token_ids)
        assert_same_bytes(cluster, Checkpoint.open("bundled"))
        release([device.address for device in cluster], "")

        link.plan(
            damage_at=[SIZE * percent // 100 for percent in (5, 8, 11, 14)],
            cut_at=[SIZE * 3 // 10],
            hold_at=SIZE * 6 // 10,
        )
        before = link.carried
        failed: list[FlowEdgeError] = []

        def first_try() -> None:
            try:
                load(cluster, big)
            except FlowEdgeError as error:
                failed.append(error)

        trying = threading.Thread(target=first_try)
        trying.start()
        link.wait_until_held()
        cluster[2].kill()
        link.release()
        trying.join(300)
        assert failed and ("v2" in str(failed[0]) or cluster[2].address in str(failed[0]))
        assert link.cuts == 1 and link.damaged == 4
        logs = "".join(device.text() for device in cluster)
        assert "was cut off" in logs
        assert "another SHA-256" in logs

        start_all([cluster[2]])
        load(cluster, big)
        assert "goes on from byte" in "".join(device.text() for device in cluster)
        assert link.carried - before < 1.5 * SIZE + UNDER_WAY, "what was there came again"
        assert_same_bytes(cluster, Checkpoint.open(str(directory)))
        _, big_tokens = generate(cluster)
        carried = link.carried

    for device in [giver, *cluster]:
        device.stop()
    start_all(cluster)
    for model, tokens in ((bundled, small_tokens), (big, big_tokens)):
        load(cluster, model)
        assert generate(cluster)[1] == tokens
        release([device.address for device in cluster], "")
    for device in cluster:
        catalogue = device.catalogue()
        assert (catalogue.received_bytes, catalogue.sent_bytes) == (0, 0), device.name
    assert link.carried == carried
