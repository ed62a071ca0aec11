"""A bar plot of tokens/s for each dataset."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flowedge_testbed.report.entries import Entry, unique, variants
from flowedge_testbed.report.style import colour, new_figure, save, tidy


def plot_bars(entries: Sequence[Entry], path: Path) -> Path:
    """Draw a panel for each model and temperature, with a group of bars for each dataset."""
    profiles = unique(entry["profile"] for entry in entries)
    temperatures = unique(entry["temperature"] for entry in entries)
    datasets = unique(entry["dataset"] for entry in entries)
    width = max(4.5, 1.6 + 1.1 * len(datasets)) * len(temperatures)
    figure, axes = new_figure(width, 2.6 * len(profiles) + 0.6, len(profiles), len(temperatures))
    for row, profile in enumerate(profiles):
        for column, temperature in enumerate(temperatures):
            mine = [e for e in entries if e["profile"] == profile and e["temperature"] == temperature]
            _panel(axes[row, column], mine, datasets)
            axes[row, column].set_title(f"{profile}, temperature {temperature:g}", fontsize=10)
    by_label: dict[str, Any] = {}
    for panel in axes.flat:
        by_label |= {label: handle for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(
        by_label.values(),
        by_label.keys(),
        loc="outside lower center",
        ncols=min(len(by_label), 5),
        frameon=False,
    )
    return save(figure, path)


def _panel(axes: Any, entries: Sequence[Entry], datasets: Sequence[str]) -> None:
    shown = variants(entries)
    width = 0.85 / max(len(shown), 1)
    for index, variant in enumerate(shown):
        speeds = {e["dataset"]: e["tokens_per_s"] for e in variant.of(entries)}
        places = [place + (index - (len(shown) - 1) / 2) * width for place in range(len(datasets))]
        heights = [speeds.get(name, 0.0) for name in datasets]
        axes.bar(
            places,
            heights,
            width,
            color=colour(variant.method),
            hatch="" if variant.plain else "////",
            label=variant.label,
            edgecolor="white",
            linewidth=0.4,
        )
    axes.set_xticks(range(len(datasets)), [name.replace("_", "\n", 1) for name in datasets], fontsize=8)
    axes.set_ylabel("tokens/s")
    tidy(axes)
