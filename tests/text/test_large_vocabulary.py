"""What a large vocabulary costs: no code may keep the interpreter while links show signs of life."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flowedge.agent.local_cluster import LocalCluster, agent_command
from flowedge.client import Client
from flowedge.client.assembly import PipelineSpec, assemble, release
from flowedge.core.grammar import Grammar, GrammarSource
from flowedge.device.process import module_command
from flowedge.text.grammar_compiler import GrammarCompiler
from tests.support.gil_watch import SIGN, GilWatch
from tests.support.large_vocabulary import EOS, large_tokenizer, make_model


def test_the_watch_finds_what_keeps_the_interpreter() -> None:
    found: list[str] = []
    with GilWatch(found.append):
        assert 3**4_000_000 > 0  # one call of the interpreter's own code
    assert any(SIGN in each for each in found)


def test_a_grammar_on_a_large_vocabulary_lets_other_threads_run() -> None:
    tokenizer = large_tokenizer(1 << 17)
    compiler = GrammarCompiler(tokenizer, {EOS}, len(tokenizer))
    found: list[str] = []
    with GilWatch(found.append):
        allowed = compiler.matcher(GrammarSource("regex", "b[a-z]{3}")).allowed()
    assert {tokenizer.decode([token])[0] for token in allowed.nonzero()[0]} == {"b"}
    assert not found


@pytest.fixture(scope="module")
def large_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("large"), 1 << 18)


@pytest.fixture
def watched_cluster() -> Iterator[LocalCluster]:
    def command(place: int, name: str) -> list[str]:
        arguments = agent_command(place, name)
        return [*module_command("tests.support.gil_watch"), *arguments[arguments.index("agent") :]]

    with LocalCluster(2, command=command) as cluster:
        yield cluster


@pytest.mark.proof
def test_agents_of_a_large_vocabulary_show_signs_of_life(
    large_model: Path, watched_cluster: LocalCluster
) -> None:
    """From "ready" on nothing keeps the interpreter: neither grammars, long prompts nor the release.

    Before that, transformers' reading of a large tokenizer does, while the device has no links.
    """
    logs = [agent.log for agent in watched_cluster.agents]
    addresses = [agent.address for agent in watched_cluster.agents]
    draft_node, *stages = addresses
    spec = PipelineSpec(model=str(large_model), draft_node=draft_node, stages=stages, drafter="ngram")
    assemble(spec, lambda *_: None)
    ready = [log.stat().st_size for log in logs]
    with Client(draft_node) as client:
        plain = client.generate(text="the word", max_new_tokens=40, ignore_eos=True)
        ruled = client.generate(text="the word", max_new_tokens=40, grammar=Grammar.json_object())
        assert len(plain.result().token_ids) == 40
        assert ruled.result().text.lstrip().startswith("{")
        long = client.generate(text="word " * 1500, max_new_tokens=8, ignore_eos=True, echo=True)
        assert len(long.result().token_ids) == 8
    release(addresses, "")
    for log, start in zip(logs, ready, strict=True):
        lines = log.read_bytes()[start:].decode().splitlines()
        assert not [line for line in lines if SIGN in line]
