"""The tool that compares ways of computing the rows of an answer again."""

from __future__ import annotations

from testbed.tools.faults import rebuilding


def test_the_pipeline_fills_once_and_then_both_ways_take_as_long_a_token(capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", ["rebuilding"])
    rebuilding.main()
    lines = capsys.readouterr().out.splitlines()
    rows = [[float(cell) for cell in line.strip("| ").split(" | ")] for line in lines[2:]]
    assert len(rows) == len(rebuilding.STAGES) * len(rebuilding.CONTEXTS)
    extra = [whole - alone for _, _, whole, alone in rows]
    assert all(each > 0 for each in extra)
    assert max(extra[:4]) < 2 * min(extra[:4])
