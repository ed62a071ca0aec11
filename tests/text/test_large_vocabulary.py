"""What a large vocabulary costs: no code may keep the interpreter while links show signs of life."""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from flowedge.agent.local_cluster import LocalCluster, agent_command
from flowedge.client import Client
from flowedge.client.assembly import PipelineSpec, assemble, release
from flowedge.core.grammar import Grammar, GrammarSource
from flowedge.device.process import module_command
from flowedge.text.grammar_compiler import GrammarCompiler
from tests.support.gil_watch import SIGN, GilWatch

EOS = 0


def large_tokenizer(size: int) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of so many tokens, most of which are words."""
    words = map("".join, itertools.product(string.ascii_lowercase, repeat=4))
    pieces = itertools.chain(["<eos>"], sorted(ByteLevel.alphabet()), words)
    tokenizer = Tokenizer(models.BPE({piece: number for number, piece in zip(range(size), pieces)}, []))  # noqa: B905
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


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
    directory = tmp_path_factory.mktemp("large")
    large_tokenizer(1 << 18).save_pretrained(directory)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1 << 18,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1 << 13,
        bos_token_id=None,
        eos_token_id=EOS,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    return directory


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
