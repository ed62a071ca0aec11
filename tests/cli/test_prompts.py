"""Prompts come from one source and are UTF-8."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from flowedge.cli.prompts import PromptSources
from flowedge.core.errors import BadRequestError


def standard_input(content: bytes) -> io.BytesIO:
    return io.BytesIO(content)


@pytest.mark.parametrize("sources", [PromptSources(prompt="-"), PromptSources(prompt_file=Path("-"))])
def test_standard_input_is_one_prompt(sources: PromptSources) -> None:
    assert sources.read(lambda: standard_input("zwölf\n\n hens\n".encode())) == ["zwölf\n\n hens"]
    with pytest.raises(BadRequestError, match="standard input: the prompt is empty"):
        sources.read(lambda: standard_input(b"\n"))
    with pytest.raises(BadRequestError, match="standard input: byte 0xff in line 2 is not UTF-8"):
        sources.read(lambda: standard_input(b"a\nb\xff"))


def test_a_file_is_one_prompt(tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"\xef\xbb\xbffirst\r\nsecond\r\n")
    assert PromptSources(prompt_file=file).read() == ["first\r\nsecond"]
    file.write_bytes(b"x" * ((16 << 20) + 1))
    with pytest.raises(BadRequestError, match="more than 16 MiB"):
        PromptSources(prompt_file=file).read()
    with pytest.raises(BadRequestError, match="cannot be read"):
        PromptSources(prompt_file=tmp_path).read()


def test_a_lone_surrogate_in_a_file_of_lines_is_named(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a"}\n{"prompt": "b\\ud800"}\n')
    with pytest.raises(
        BadRequestError, match=r"prompts\.jsonl:2: the prompt is not valid UTF-8: its character 2 is U\+D800"
    ):
        PromptSources(prompts=file).read()


def test_there_is_one_source() -> None:
    with pytest.raises(BadRequestError, match="no prompt is given; give one of --prompt TEXT, --prompt -"):
        PromptSources().read()
    with pytest.raises(BadRequestError, match="3 sources"):
        PromptSources("a", Path("b"), Path("c")).read()
