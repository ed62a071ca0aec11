"""How a GGUF model is named: a file, any part of a split model, a directory, a file of a hub id."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from gguf import GGUFReader
from huggingface_hub.utils import filter_repo_objects

from flowedge.core.errors import CheckpointError
from flowedge.drafting.loading import drafter_directory, kind_of
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.model_source import find_model
from flowedge.models.gguf.file_choice import SIDE_FILES, patterns_of
from flowedge.models.gguf.model_files import files_in, model_files
from flowedge.weights.model_directory import is_on_disk, model_name
from flowedge.weights.settings import WeightsSettings
from tests.models.tiny_families import make_tiny
from tests.support.gguf_files import write_gguf

PARTS = 3


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"), "llama")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Path:
    return write_gguf(tmp_path_factory.mktemp("whole") / "whole.gguf", tiny, tokenizer=None)


@pytest.fixture
def split(tmp_path: Path, tiny: Path) -> list[Path]:
    """The files of a split model."""
    tensors = len(Checkpoint(tiny).names)
    settings = {"split_max_tensors": -(-tensors // PARTS), "use_temp_file": False}
    write_gguf(tmp_path / "tiny.gguf", tiny, tokenizer=None, **settings)
    paths = sorted(tmp_path.glob("tiny-*.gguf"))
    assert [path.name for path in paths] == [f"tiny-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    return paths


def same(one: Checkpoint, other: Checkpoint) -> bool:
    return one.names == other.names and all(
        torch.equal(one.tensor(name), other.tensor(name)) for name in one.names
    )


def test_any_part_names_a_split_model(split: list[Path], whole: Path) -> None:
    expected = Checkpoint.open(str(whole))
    for path in split:
        checkpoint = Checkpoint.open(str(path))
        assert checkpoint.gguf == tuple(split) and same(checkpoint, expected)
    assert checkpoint.fingerprint != expected.fingerprint
    assert len(GGUFReader(split[1]).tensors) < len(expected.names)


def test_a_directory_with_one_model(split: list[Path], whole: Path) -> None:
    directory = split[0].parent
    assert same(Checkpoint.open(str(directory)), Checkpoint.open(str(whole)))
    shutil.copy(whole, directory / "other.gguf")
    with pytest.raises(CheckpointError, match=r"several GGUF models: other\.gguf, tiny-00001-of-00003\.gguf"):
        Checkpoint.open(str(directory))


def test_files_beside_a_model_are_no_models(tmp_path: Path, whole: Path) -> None:
    shutil.copy(whole, tmp_path / "x-Q8_0.gguf")
    for name in ("mmproj-x-f16.gguf", "x.imatrix.gguf"):
        (tmp_path / name).write_bytes(b"other")
    assert find_model(str(tmp_path)).gguf == (tmp_path / "x-Q8_0.gguf",)
    with pytest.raises(CheckpointError, match=r"no GGUF model states the quantisation F16 .*: x-Q8_0\.gguf"):
        find_model(f"{tmp_path}:F16")


def test_a_quantisation_in_a_directory(tmp_path: Path, whole: Path, split: list[Path]) -> None:
    for name in ("x.Q4_K_M.gguf", "x.Q4_K_S.gguf", "x-q8_0.gguf", "x-IQ4_K_M2.gguf"):
        shutil.copy(whole, tmp_path / name)
    folder = tmp_path / "BF16"
    folder.mkdir()
    for part in split:
        part.rename(folder / part.name.replace("tiny-", "tiny-BF16-"))
    assert find_model(f"{tmp_path}:Q4_K_M").gguf == (tmp_path / "x.Q4_K_M.gguf",)
    assert find_model(f"{tmp_path}:Q8_0").gguf == (tmp_path / "x-q8_0.gguf",)
    assert find_model(f"{tmp_path}:bf16").gguf == tuple(sorted(folder.iterdir()))
    with pytest.raises(CheckpointError, match=r"several GGUF models: .*append .* like :Q4_K_M"):
        find_model(str(tmp_path))
    shutil.copy(whole, tmp_path / "y-Q4_K_M.gguf")
    with pytest.raises(CheckpointError, match=r"several GGUF models: x\.Q4_K_M\.gguf, y-Q4_K_M\.gguf"):
        find_model(f"{tmp_path}:Q4_K_M")
    with pytest.raises(CheckpointError, match="nothing: no such directory, and not a hub id"):
        find_model("nothing:Q4_K_M")


def test_a_config_comes_before_gguf_files(tmp_path: Path, tiny: Path, whole: Path) -> None:
    both = tmp_path / "both"
    shutil.copytree(tiny, both)
    shutil.copy(whole, both)
    assert not Checkpoint.open(str(both)).gguf
    assert Checkpoint.open(str(both / whole.name)).gguf
    (both / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="named by the path of its file"):
        Checkpoint.open(str(both))


def test_a_missing_part(split: list[Path]) -> None:
    split[1].unlink()
    with pytest.raises(CheckpointError, match=r"tiny-00002-of-00003\.gguf, .* is missing"):
        Checkpoint.open(str(split[0]))


def test_parts_that_do_not_belong_together(split: list[Path]) -> None:
    alone = split[0].with_name("alone.gguf")
    shutil.copy(split[0], alone)
    with pytest.raises(CheckpointError, match="one of 3 files of a split model, and 1 are here"):
        Checkpoint.open(str(alone))
    shutil.copy(split[0], split[1])
    with pytest.raises(CheckpointError, match="is not file 2 of the split model"):
        Checkpoint.open(str(split[0]))


@pytest.mark.parametrize("name", ["x-00004-of-00003.gguf", "x-00000-of-00003.gguf"])
def test_impossible_part_numbers(tmp_path: Path, whole: Path, name: str) -> None:
    shutil.copy(whole, tmp_path / name)
    with pytest.raises(CheckpointError, match="is not the name of one of 1 to 999 files"):
        Checkpoint.open(str(tmp_path / name))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Path], str], Path]:
    """hub(files, folder) puts files into the local copy of owner/name, and returns their directory there."""

    def put(files: list[Path], folder: str) -> Path:
        repository = tmp_path / "hub" / "models--owner--name"
        snapshot = repository / "snapshots" / ("0" * 40) / folder
        snapshot.mkdir(parents=True)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text("0" * 40)
        for path in files:
            shutil.copy(path, snapshot)
        return snapshot

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return put


def test_a_file_of_a_hub_id(hub: Callable[[list[Path], str], Path], whole: Path) -> None:
    directory = hub([whole], "")
    found = find_model("owner/name/whole.gguf", hub=False)
    assert found.gguf == (directory / "whole.gguf",)
    assert same(Checkpoint.open("owner/name/whole.gguf", hub=False), Checkpoint.open(str(whole)))
    with pytest.raises(CheckpointError, match=r"has no file other\.gguf"):
        Checkpoint.open("owner/name/other.gguf", hub=False)
    with pytest.raises(
        CheckpointError, match=r"no config\.json; name one of its GGUF files by owner/name/FILE"
    ):
        Checkpoint.open("owner/name", hub=False)


def test_a_quantisation_of_a_hub_id(
    hub: Callable[[list[Path], str], Path], whole: Path, tmp_path: Path
) -> None:
    files = [tmp_path / name for name in ("a-Q4_K_M.gguf", "a-Q6_K.gguf", "mmproj-a-Q6_K.gguf")]
    for file in files:
        shutil.copy(whole, file)
    directory = hub(files, "")
    assert find_model("owner/name:q6_k", hub=False).gguf == (directory / "a-Q6_K.gguf",)
    with pytest.raises(CheckpointError, match=r"quantisation Q8_0 .* models are: a-Q4_K_M\.gguf, a-Q6"):
        find_model("owner/name:Q8_0", hub=False)


def test_patterns_for_the_hub() -> None:
    names = ["x-Q4_K_M.gguf", "x.q4_k_m.gguf", "BF16/x-Q4_K_M-00001-of-00002.gguf", "mmproj-Q4_K_M.gguf"]
    others = ["x-Q4_K_S.gguf", "x-Q4_K_M.gguf.txt", "x-Q4_K_M-old.gguf", "xQ4_K_M.gguf"]
    found = filter_repo_objects(
        [*names, *others], allow_patterns=patterns_of("Q4_K_M"), ignore_patterns=list(SIDE_FILES)
    )
    assert list(found) == names[:3]


def test_a_split_model_in_a_folder_of_a_hub_id(
    hub: Callable[[list[Path], str], Path], split: list[Path], whole: Path
) -> None:
    hub(split, "BF16")
    checkpoint = Checkpoint.open(f"owner/name/BF16/{split[2].name}", hub=False)
    assert same(checkpoint, Checkpoint.open(str(whole)))


def test_whether_it_is_on_this_device(tmp_path: Path, split: list[Path], whole: Path) -> None:
    settings = WeightsSettings()
    assert is_on_disk(str(whole), settings) and is_on_disk(str(split[0].parent), settings)
    assert not is_on_disk(str(tmp_path / "nothing.gguf"), settings)
    assert not is_on_disk("owner/name/nothing.gguf", settings)
    split[1].unlink()
    assert not is_on_disk(str(split[0]), settings)
    assert model_name(str(whole)) == "whole.gguf"


def test_it_can_be_a_drafter(whole: Path) -> None:
    directory = drafter_directory(str(whole))
    assert kind_of(directory) == "lm" and Checkpoint(directory).gguf == (whole,)


def test_links_of_the_hubs_cache_keep_their_names(tmp_path: Path, whole: Path) -> None:
    """The hub's cache has links to files that are named by their hashes."""
    snapshot, copy, blob = tmp_path / "snapshot", tmp_path / "copy", tmp_path / ("0" * 64)
    shutil.copy(whole, blob)
    for directory in (snapshot, copy):
        directory.mkdir()
    (snapshot / "x.gguf").symlink_to(blob)
    shutil.copy(whole, copy / "x.gguf")
    linked, plain = (Checkpoint.open(str(directory)) for directory in (snapshot, copy))
    assert linked.gguf == (snapshot / "x.gguf",) and linked.fingerprint == plain.fingerprint


def test_files_are_made_once_and_anew_after_a_change(tmp_path: Path, whole: Path, tiny: Path) -> None:
    path = tmp_path / "x.gguf"
    shutil.copy(whole, path)
    made = model_files([path])
    assert model_files([path]) is made and files_in(made.directory) is made
    assert files_in(tmp_path) is None
    write_gguf(path, tiny, "F16", tokenizer=None)
    assert model_files([path]) is not made


def test_a_file_that_ends_too_early(tmp_path: Path, whole: Path) -> None:
    path = tmp_path / "x.gguf"
    shutil.copy(whole, path)
    checkpoint = Checkpoint.open(str(path))
    path.write_bytes(path.read_bytes()[:-4096])
    last = max(checkpoint.names, key=lambda name: checkpoint.files[0][checkpoint.source(name)[1].name].offset)
    with pytest.raises(CheckpointError, match=rf"x\.gguf: tensor {last} cannot be read"):
        checkpoint.tensor(last)
