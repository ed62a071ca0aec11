"""llama-bench as a process: its arguments, its JSON, its failures; a script takes its place."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flowedge.core.errors import BadRequestError, DeadlineError, DeviceError
from testbed.tools.beside_llamacpp import installation, rpc_servers
from testbed.tools.beside_llamacpp.installation import BENCH, QUANTIZE, RPC_SERVERS, LlamaCpp, run_program
from testbed.tools.beside_llamacpp.llama_bench import LlamaBench, parse_tests
from testbed.tools.beside_llamacpp.rpc_servers import RpcServers

# Answers with a test for each number of rows and threads, as llama-bench does.
SCRIPT = """
import json, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
tests = []
for threads in map(int, given["-t"].split(",")):
    for name, key in (("n_prompt", "-p"), ("n_gen", "-n")):
        for count in filter(None, map(int, given[key].split(","))):
            test = {"n_prompt": 0, "n_gen": 0, "n_threads": threads, "build_commit": "abc", "build_number": 7}
            test |= {name: count, "samples_ns": [count * 1_000_000] * int(given["-r"])}
            tests.append(test)
print(json.dumps(tests))
"""


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!{sys.executable}\n{text}", encoding="utf-8")
    path.chmod(0o755)
    return path


def folder(path: Path, bench: str = SCRIPT, server: str = "") -> Path:
    """A build's folder whose programs are scripts."""
    (path / "bin").mkdir()
    program(path / "bin" / BENCH, bench)
    program(path / "bin" / QUANTIZE, "")
    program(path / "bin" / RPC_SERVERS[0], server)
    return path


def test_a_run_gives_the_seconds_of_each_test(tmp_path: Path) -> None:
    llamacpp = LlamaCpp.at(folder(tmp_path), tmp_path / "build")
    commands: list[str] = []
    bench = LlamaBench(llamacpp, tmp_path / "x.gguf", commands)
    for _ in range(2):
        tests = bench.run(prompts=[4, 16], generated=[8], threads=[1, 2], cached=128, repetitions=3)
    found = {(test.threads, test.prompt, test.generated): test.seconds for test in tests}
    assert found == {
        (threads, *sizes): (max(sizes) * 1e-3,) * 3
        for threads in (1, 2)
        for sizes in ((4, 0), (16, 0), (0, 8))
    }
    assert {test.build for test in tests} == {"abc (7)"}
    (command,) = commands  # noted once, however often it is run
    assert command.endswith("-o json -p 4,16 -n 8 -t 1,2 -d 128 -embd 0 -r 3")


def test_rpc_servers_are_given_all_layers(tmp_path: Path) -> None:
    commands: list[str] = []
    llamacpp = LlamaCpp.at(folder(tmp_path), tmp_path / "build")
    bench = LlamaBench(llamacpp, tmp_path / "x.gguf", commands, ("127.0.0.1:1", "127.0.0.1:2"))
    bench.run(generated=[8], threads=[1], repetitions=1)
    assert commands[0].endswith("-p 0 -n 8 -t 1 -d 0 -embd 0 -r 1 --rpc 127.0.0.1:1,127.0.0.1:2 -ngl 99")


@pytest.mark.parametrize(
    "text", ["", "no JSON", "{}", "[{}]", '[{"samples_ns": []}]', '[{"samples_ns": [0]}]', "[1]"]
)
def test_what_is_no_result_is_refused(text: str) -> None:
    if text == "{}":
        assert parse_tests(text) == []
        return
    with pytest.raises(BadRequestError, match="no results that can be read"):
        parse_tests(text)


def test_a_program_that_fails_is_quoted(tmp_path: Path) -> None:
    failing = "import sys; print('no such model', file=sys.stderr); sys.exit(3)"
    bench = LlamaBench(LlamaCpp.at(folder(tmp_path, failing), tmp_path), tmp_path / "x.gguf", [])
    with pytest.raises(BadRequestError, match="status 3: no such model"):
        bench.run(generated=[1], threads=[1], repetitions=1)


def test_a_program_that_hangs_is_killed() -> None:
    with pytest.raises(DeadlineError, match=r"had not ended after 0\.2 s"):
        run_program([sys.executable, "-c", "import time; time.sleep(60)"], 0.2)


def test_a_folder_without_programs_and_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequestError, match=r"holds neither llama-bench.*; clone https"):
        LlamaCpp.at(tmp_path, tmp_path / "build")


def test_a_source_folder_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, build = tmp_path / "source", tmp_path / "build"
    (source / "tools" / "rpc").mkdir(parents=True)
    (source / "CMakeLists.txt").touch()
    (source / "tools" / "rpc" / "CMakeLists.txt").write_text("set(TARGET rpc-server)", encoding="utf-8")
    run: list[list[str]] = []

    def make(command: list[str], _: float) -> str:
        run.append(command)
        if "--build" in command:
            build.mkdir()
            folder(build)
        return ""

    monkeypatch.setattr(installation, "run_program", make)
    assert LlamaCpp.at(source, build).bench == build / "bin" / BENCH
    configure, compile_all = run
    assert "-DGGML_RPC=ON" in configure
    assert compile_all[-4:] == ["--target", BENCH, QUANTIZE, "rpc-server"]
    assert LlamaCpp.at(source, build).bench == build / "bin" / BENCH
    assert len(run) == 2, "a build is used again"


SERVER = """
import socket, sys, time
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
listening = socket.create_server((given["-H"], int(given["-p"])))
time.sleep(60)
"""


def test_servers_listen_on_loopback_and_end(tmp_path: Path) -> None:
    servers = RpcServers(LlamaCpp.at(folder(tmp_path, server=SERVER), tmp_path), 2)
    with servers:
        assert len(set(servers.addresses)) == 2
        assert all(address.startswith("127.0.0.1:") for address in servers.addresses)
        processes = list(servers.processes)
        assert [process.poll() for process in processes] == [None, None]
    assert all(process.poll() is not None for process in processes)
    assert servers.addresses == ()


def test_a_server_that_ends_at_its_start_is_an_error(tmp_path: Path) -> None:
    llamacpp = LlamaCpp.at(folder(tmp_path, server="raise SystemExit(4)"), tmp_path)
    with pytest.raises(DeviceError, match="ended with status 4"), RpcServers(llamacpp, 1):
        pytest.fail("it did not listen")


def test_a_server_that_never_listens_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_servers, "START_S", 0.3)
    servers = RpcServers(LlamaCpp.at(folder(tmp_path, server="import time; time.sleep(60)"), tmp_path), 1)
    with pytest.raises(DeadlineError, match="did not listen"), servers:
        pytest.fail("it did not listen")
    assert servers.processes == []
