"""Mistakes that the command line and files of this machine show, before anything is started."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

import flowedge
from flowedge.cli.main import run
from flowedge.cli.pipelines.preflight import check_capacity
from flowedge.cli.pipelines.request import PipelineRequest
from flowedge.core.errors import CapacityError
from flowedge.models.checkpoint.model_header import ModelHeader
from tests.support.commands import run_command
from tests.support.gguf_files import write_gguf

BUNDLED = Path(flowedge.__file__).parent / "bundled"
MODEL_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("flowedge.agent.local_cluster.LocalCluster.start", fail)
    monkeypatch.setattr("flowedge.client.sync.Client.describe", fail)


def refused(capsys: pytest.CaptureFixture[str], *options: str, code: int = 2) -> str:
    """Run `flowedge generate`, which has to fail with one line; return the line."""
    model = [] if "--model" in options else ["--model", "bundled"]
    assert run(["generate", *model, *options]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("flowedge: ")
    assert captured.err.count("\n") == 1
    return captured.err


def here(*options: str) -> list[str]:
    return ["--stages", "2", "--prompt", "Hi", *options]


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("gguf") / "small-Q8_0.gguf"
    write_gguf(file, kind="Q8_0")
    return file


def bundled_model(directory: Path, **changes: object) -> Path:
    """Copy the bundled model's small files; `changes` replace values of its config."""
    directory.mkdir()
    for name in MODEL_FILES:
        shutil.copyfile(BUNDLED / "model" / name, directory / name)
    (directory / "model.safetensors").symlink_to(BUNDLED / "model" / "model.safetensors")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | changes))
    return directory


def test_an_answer_that_leaves_no_room_for_a_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(capsys, *here("--max-new-tokens", "2048"), code=1)
    assert "--max-new-tokens 2048 leaves no room for a prompt: bundled takes 2048 tokens" in error


def test_a_prompt_and_its_answer_are_added() -> None:
    header = ModelHeader("m", 8, 100, 4, 16)
    check_capacity(header, 40, 60)
    with pytest.raises(
        CapacityError, match=r"41 tokens of the prompt and 60 new ones .* lower --max-new-tokens"
    ):
        check_capacity(header, 41, 60)
    with pytest.raises(CapacityError, match=r"prompt 3: .* shorten the prompt"):
        check_capacity(header, 101, 60, "prompt 3: ")
    check_capacity(ModelHeader("m", 8, None, None, None), 1000, 1000)


def test_a_prompt_is_counted_as_the_draft_node_counts_it(capsys: pytest.CaptureFixture[str]) -> None:
    prompt = "one two three " * 700
    error = refused(capsys, "--stages", "2", "--prompt", prompt, code=1)
    from flowedge.models.checkpoint.checkpoint import Checkpoint
    from flowedge.models.checkpoint.tokenizer_loading import load_tokenizer
    from flowedge.text.tokenizer import encode_chat

    count = len(encode_chat(load_tokenizer(Checkpoint.open("bundled")), prompt))
    assert f"{count} tokens of the prompt and 256 new ones make {count + 256}" in error
    assert "bundled takes 2048; shorten the prompt" in error
    assert "prompt 1" not in error


def test_a_prompt_of_a_file_is_named_by_its_number(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "short"}, {"prompt": "word " * 3000}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "prompt 2: " in refused(capsys, "--stages", "2", "--prompts", str(file), code=1)


def test_a_prompt_of_more_bytes_than_agents_take(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("word " * (250 << 10))
    error = refused(capsys, "--stages", "2", "--prompt-file", str(file), code=1)
    assert "the prompt has 1280000 bytes, the maximum is 262144" in error


def test_the_demo_is_checked_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--max-new-tokens", "3000"]) == 1
    assert "bundled takes 2048 tokens" in capsys.readouterr().err
    assert run(["demo", "--prompt", "\udcff"]) == 2
    assert "--prompt is not valid UTF-8" in capsys.readouterr().err


def test_gguf_files_of_a_folder_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, gguf: Path
) -> None:
    for name in ("small-Q4_K_M.gguf", "small-Q8_0.gguf"):
        (tmp_path / name).symlink_to(gguf)
    error = refused(capsys, *here("--model", str(tmp_path)))
    assert "small-Q4_K_M.gguf, small-Q8_0.gguf; give the path of one file" in error
    assert "Q5_0" in refused(capsys, *here("--model", f"{tmp_path}:Q5_0"))


def test_the_header_of_a_gguf_file_is_read(capsys: pytest.CaptureFixture[str], gguf: Path) -> None:
    assert "the model has 8" in refused(capsys, *here("--model", str(gguf), "--split", "5,4"))
    error = refused(capsys, *here("--model", str(gguf), "--max-new-tokens", "5000"), code=1)
    assert f"{gguf} takes 2048 tokens" in error
    one_model = str(gguf.parent)  # a folder with one model is that model
    assert "the model has 8" in refused(capsys, *here("--model", one_model, "--split", "5,4"))


def test_directories_that_hold_no_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "the directory is empty" in refused(capsys, *here("--model", str(tmp_path)))
    assert "the directory is empty" in refused(capsys, *here("--drafter", str(tmp_path)))
    (tmp_path / "notes.txt").write_text("notes")
    assert "no config.json and no GGUF" in refused(capsys, *here("--model", str(tmp_path)))
    shutil.copyfile(BUNDLED / "model" / "config.json", tmp_path / "config.json")
    assert "no weights" in refused(capsys, *here("--model", str(tmp_path)))
    assert "no weights" in refused(capsys, *here("--drafter", str(tmp_path)))
    weights = str(BUNDLED / "model" / "model.safetensors")
    assert "is a file and no GGUF file" in refused(capsys, *here("--model", weights))


def test_a_model_of_another_type(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = bundled_model(tmp_path / "model", model_type="gpt2")
    assert f"{model}: model type 'gpt2' is not supported" in refused(
        capsys, *here("--model", str(model)), code=1
    )


def test_a_head_of_another_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = bundled_model(tmp_path / "model", hidden_size=512)
    error = refused(capsys, *here("--model", str(model), "--drafter", "bundled"))
    assert "--drafter bundled is for a model of hidden size 256 and 4096 tokens" in error
    assert f"{model} has 512 and 4096" in error
    assert "leave --drafter out" in error


def test_a_path_that_only_agents_may_have_is_left_to_them(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--peers", "127.0.0.1:1,127.0.0.1:2", "--prompt", "Hi", "--model", "/on/the/agents"]
    with pytest.raises(AssertionError, match="a process was started"):
        run(["generate", *options])
    assert "drafting by lookup" in capsys.readouterr().err
    assert "--model /on/the/agents: no such directory" in refused(capsys, *options, "--check")


def test_a_hub_id_is_downloaded_before_agents_start(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[PipelineRequest] = []

    def download(request: PipelineRequest, *_: object, **__: object) -> bool:
        asked.append(request)
        return False

    monkeypatch.setattr("flowedge.cli.pipelines.model_choice.download_models", download)
    with pytest.raises(AssertionError, match="a process was started"):
        run(["generate", *here("--model", "owner/name", "--drafter", "owner/head")])
    assert [(request.model, request.drafter) for request in asked] == [("owner/name", ("owner/head",))]


def test_no_library_of_models_is_imported_for_it(gguf: Path) -> None:
    commands = [
        here("--model", "bundled", "--max-new-tokens", "3000"),
        ["--model", "bundled", "--stages", "2", "--prompt", "word " * 3000],
        here("--model", str(gguf), "--split", "5,4"),
        here("--drafter", "ngrm"),
    ]
    code = (
        "import sys; from flowedge.cli.main import run\n"
        f"print([run(['generate', *options]) for options in {commands!r}])\n"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    done = run_command([sys.executable, "-c", code], check=True)
    assert done.stdout.splitlines() == ["[1, 1, 2, 2]", "[]"]
    assert "starting" not in done.stderr
