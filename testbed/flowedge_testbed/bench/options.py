"""The options of `flowedge bench`, and the scenario that they make of a shipped one."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowedge.core.errors import BadRequestError
from flowedge.core.request import Noise
from flowedge_testbed.scenario import SHIPPED, Scenario


@dataclass(frozen=True)
class BenchOptions:
    """The options of `flowedge bench`. None leaves the scenario's value.

    Attributes:
        data: directory of the datasets' files; see data_directory for None.
        save_paths: file to write the true paths of all runs to.
        processes: number of processes that carry out runs.
        run_directory: of runs and true paths, which several benchmarks may share; `out` for None.
        cluster_dir, insecure: how agents are called, as `choose_credentials` was told; for the report.
    """

    scenario: Path
    out: Path
    clock: str | None = None
    quick: bool = False
    strategies: tuple[str, ...] | None = None
    datasets: tuple[str, ...] | None = None
    temperatures: tuple[float, ...] | None = None
    places: tuple[str, ...] | None = None
    noise: tuple[Noise, ...] | None = None
    samples: int | None = None
    model: str | None = None
    drafter: tuple[str, ...] | None = None
    middles: tuple[str, ...] | None = None
    paths: str | None = None
    save_paths: Path | None = None
    dtype: str | None = None
    device: str | None = None
    data: Path | None = None
    processes: int = 2
    run_directory: Path | None = None
    cluster_dir: Path | None = None
    insecure: bool = False

    @property
    def data_directory(self) -> Path:
        """`data`, or the working directory for a shipped scenario, or else the scenario's directory."""
        if self.data is not None:
            return self.data
        return Path() if self._is_shipped else self.scenario.parent

    @property
    def stored(self) -> Path:
        """The directory of runs and true paths."""
        return self.out if self.run_directory is None else self.run_directory

    @property
    def command(self) -> str:
        """The `flowedge bench` command with these options."""
        words = [self.scenario.stem if self._is_shipped else str(self.scenario), "--out", str(self.out)]
        words += ["--quick"] * self.quick + ["--insecure"] * self.insecure
        noise = None if self.noise is None else self.noise[0] if len(self.noise) == 1 else "both"
        given = {
            "--clock": self.clock,
            "--strategies": _joined(self.strategies),
            "--datasets": _joined(self.datasets),
            "--temperatures": _joined(self.temperatures),
            "--places": _joined(self.places),
            "--noise": noise,
            "--samples": self.samples,
            "--model": self.model,
            "--middle": _joined(self.middles),
            "--paths": self.paths,
            "--save-paths": self.save_paths,
            "--dtype": self.dtype,
            "--device": self.device,
            "--data": self.data,
            "--cluster-dir": self.cluster_dir,
        }
        words += [word for name, value in given.items() if value is not None for word in (name, str(value))]
        words += [word for name in self.drafter or () for word in ("--drafter", name)]
        return f"flowedge bench {shlex.join(words)}"

    @property
    def _is_shipped(self) -> bool:
        return SHIPPED in self.scenario.parents


def _joined(values: Sequence[str | float] | None) -> str | None:
    return None if values is None else ",".join(f"{v:g}" if isinstance(v, float) else v for v in values)


def overridden(scenario: Scenario, options: BenchOptions) -> Scenario:
    """Return the scenario with the command line's values in place of its own.

    Raises:
        BadRequestError: when a value is wrong, or the scenario has no dataset of a given name.
    """
    changed = scenario.quickened() if options.quick else scenario
    content = changed.model_dump()
    if options.datasets is not None:
        unknown = sorted(set(options.datasets) - set(scenario.datasets))
        if unknown:
            raise BadRequestError(
                f"no dataset {', '.join(unknown)} in the scenario; it has {', '.join(scenario.datasets)}"
            )
        content["datasets"] = {name: scenario.datasets[name] for name in options.datasets}
    if options.places is not None:
        unknown = sorted(set(options.places) - set(scenario.places))
        if unknown:
            known = ", ".join(scenario.places) or "none"
            raise BadRequestError(f"no place {', '.join(unknown)} in the scenario; it has {known}")
        content["places"] = {name: content["places"][name] for name in options.places}
    given: dict[str, Any] = {
        "clock": options.clock,
        "strategies": None if options.strategies is None else _methods(options.strategies, scenario),
        "temperatures": options.temperatures,
        "noise": options.noise,
        "samples": options.samples,
    }
    content.update({name: value for name, value in given.items() if value is not None})
    if options.model is not None:
        content["pair"].pop("paths", None)  # of the scenario's own model
    models = {
        "model": options.model,
        "paths": options.paths,
        "drafter": options.drafter,
        "middles": options.middles,
        "dtype": options.dtype,
        "device": options.device,
    }
    content["pair"].update({name: value for name, value in models.items() if value is not None})
    return Scenario.checked(content, "the command line")


def _methods(given: Sequence[str], scenario: Scenario) -> list[str]:
    """Return the names of methods; a variant's name may have commas, at which --strategies was split."""
    found: list[str] = []
    rest = list(given)
    while rest:
        counts = range(len(rest), 1, -1)
        count = next((count for count in counts if ", ".join(rest[:count]) in scenario.variants), 1)
        found.append(", ".join(rest[:count]))
        del rest[:count]
    return found
