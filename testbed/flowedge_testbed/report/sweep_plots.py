"""Plots of tokens/s along the axes of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from flowedge_testbed.report.entries import Entry, Variant, mean_of, unique, variants
from flowedge_testbed.report.paper import counterpart
from flowedge_testbed.report.style import colour, new_figure, save, tidy


def plot_lines(
    entries: Sequence[Entry],
    axis: str,
    label: str,
    path: Path,
    published: Mapping[str, Sequence[float]] | None = None,
) -> Path:
    """Draw a panel for each model: means over datasets by method, and published figures dashed."""
    profiles = unique(entry["profile"] for entry in entries)
    values = unique(entry["point"][axis] for entry in entries)
    figure, axes = new_figure(6.4 * len(profiles), 3.6, 1, len(profiles))
    for column, profile in enumerate(profiles):
        panel = axes[0, column]
        for variant in variants(entries):
            own = [e for e in variant.of(entries) if e["profile"] == profile]
            speeds = [mean_of([e for e in own if e["point"][axis] == v], "tokens_per_s") for v in values]
            ink, marker = colour(variant.method), "o" if variant.plain else "^"
            panel.plot(values, speeds, color=ink, marker=marker, markersize=4, label=variant.label)
            theirs = (published or {}).get(counterpart(variant))
            if theirs is not None and len(theirs) == len(values):
                panel.plot(values, theirs, color=ink, linestyle="--", label=f"{variant.method}, published")
        panel.set_title(profile, fontsize=10)
        panel.set_xlabel(label)
        panel.set_ylabel("tokens/s")
        panel.set_xticks(values, [f"{value:g}" for value in values])
        panel.set_ylim(bottom=0)
        tidy(panel)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=min(len(labels), 3 * len(profiles)),
        frameon=False,
    )
    return save(figure, path)


def plot_depth(entries: Sequence[Entry], variant: Variant, path: Path) -> Path:
    """Draw a map of tokens/s by the depth of a round's first tree and of the trees merged into it."""
    mine = variant.of(entries)
    first = unique(entry["point"]["option.depth"] for entry in mine)
    merged = unique(entry["point"]["option.expand_depth"] for entry in mine)
    grid = np.zeros((len(first), len(merged)))
    for row, depth in enumerate(first):
        for column, expand in enumerate(merged):
            there = [
                e
                for e in mine
                if (e["point"]["option.depth"], e["point"]["option.expand_depth"]) == (depth, expand)
            ]
            grid[row, column] = mean_of(there, "tokens_per_s") or np.nan
    figure, axes = new_figure(max(4.8, 1.4 + 0.8 * len(merged)), max(3.6, 1.4 + 0.55 * len(first)))
    panel = axes[0, 0]
    image = panel.imshow(grid, cmap="viridis", aspect="auto")
    middle = (np.nanmin(grid) + np.nanmax(grid)) / 2
    for (row, column), value in np.ndenumerate(grid):
        ink = "black" if value > middle else "white"
        panel.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8, color=ink)
    panel.set_xticks(range(len(merged)), [f"{value:g}" for value in merged])
    panel.set_yticks(range(len(first)), [f"{value:g}" for value in first])
    panel.set_xlabel("layers of the trees merged in, d_exp")
    panel.set_ylabel("layers of a round's first tree, d0")
    panel.set_title(f"{variant.label}, tokens/s", fontsize=10)
    figure.colorbar(image, ax=panel)
    return save(figure, path)
