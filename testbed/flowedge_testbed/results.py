"""The content of results.json: what was measured, with the settings, and nothing about the day of the run.

On emulated devices a second run gives the same content. Live runs measure other times.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge_testbed.emulation.held_memory import held_gib
from flowedge_testbed.emulation.predicted_latency import predicted_latency
from flowedge_testbed.record import DeviceUsage, RunRecord
from flowedge_testbed.replay.run_bounds import RunBounds, bound_together
from flowedge_testbed.runs import Case, Cell, Options

DIGITS = 9  # significant digits of a printed number
BASELINES = ("naive_pp", "autoregressive")
WITHOUT_LOOPING = "_without_looping"  # ends the name of a figure of the answers that do not loop

CHUNK = 16  # tokens of an answer; intervals are over chunks where a dataset has one prompt

_COUNTS = ("steps", "verifying", "drafted", "tokens")  # of VerifierCounts
_PLACES = ("compared", "survived")  # of VerifierCounts, by place


def entries(
    cells: Sequence[Cell], records: Mapping[str, RunRecord], bounds: Mapping[str, RunBounds]
) -> list[dict[str, Any]]:
    """Return an object for each method on a case, a dataset, a temperature and a kind of drafting.

    Speedups are over the baseline with plain drafting. A speedup is None if the baseline was not run. A tuned
    method has the entries of its best setting.

    Args:
        bounds: bounds by key of a run. Figures that depend on a missing bound are None.
    """
    found = [
        _entry(cell, [records[key] for key in cell.keys], [bounds.get(key) for key in cell.keys])
        for cell in cells
    ]
    found = best_settings(found)
    plain = {(_place(entry), entry["method"]): entry for entry in found if entry["noise"] == "plain"}
    for entry in found:
        for baseline, part in itertools.product(BASELINES, ("", WITHOUT_LOOPING)):
            other = plain.get((_place(entry), baseline), {})
            speed = f"tokens_per_s{part}"
            entry[f"speedup_vs_{baseline}{part}"] = _ratio(entry[speed], other.get(speed))
    return found


def best_settings(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries without those of a tuned method's other settings than its best.

    The best has the most tokens/s at a place, temperature and kind of drafting, as a mean over datasets. In
    its entries `tuned` also has the number of settings, and the gain over the method's own setting.
    """
    speeds: dict[tuple[Any, ...], dict[Options, list[float]]] = {}
    for entry in found:
        if "tuned" in entry:
            place, setting = _tuned_at(entry)
            speeds.setdefault(place, {}).setdefault(setting, []).append(entry["tokens_per_s"] or 0.0)
    best = {}
    for place, of_settings in speeds.items():
        means = {setting: fmean(of_datasets) for setting, of_datasets in of_settings.items()}
        setting = max(means, key=lambda each: means[each])
        best[place] = setting, {"settings": len(means), "gain": _ratio(means[setting], means[()])}
    kept = []
    for entry in found:
        if "tuned" not in entry:
            kept.append(entry)
            continue
        place, setting = _tuned_at(entry)
        if setting == best[place][0]:
            kept.append({**entry, "tuned": {**entry["tuned"], **best[place][1]}})
    return kept


def _tuned_at(entry: Mapping[str, Any]) -> tuple[tuple[Any, ...], Options]:
    """Return where an entry of a tuned method was measured, and with which setting."""
    profile, point, _, temperature = _place(entry)
    where = profile, point, temperature, entry["noise"], entry["method"]
    return where, tuple(entry["tuned"]["setting"].items())


def _ratio(speed: float | None, other: float | None) -> float | None:
    return rounded(speed / other) if speed is not None and other else None


def differing_outputs(cells: Sequence[Cell], records: Mapping[str, RunRecord]) -> list[str]:
    """Return the methods whose tokens differ from the first method's on the same prompts.

    There are none, since every method is lossless.
    """
    first: dict[tuple[Any, ...], list[str]] = {}
    differing: set[str] = set()
    for cell in cells:
        outputs = [records[key].output for key in cell.keys]
        place = (cell.case.profile, cell.case.point, cell.dataset, cell.temperature)
        if first.setdefault(place, outputs) != outputs:
            differing.add(cell.method)
    return sorted(differing)


def _place(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return entry["profile"], tuple(entry["point"].items()), entry["dataset"], entry["temperature"]


def _entry(cell: Cell, runs: Sequence[RunRecord], bounds: Sequence[RunBounds | None]) -> dict[str, Any]:
    gaps = sorted(gap for run in runs for gap in run.itl_s)
    per_segment = [count for run in runs for count in run.accepted_per_segment]
    # The rounds of a method that drafts nothing are not counted.
    drafts = any(run.draft_layers for run in runs)
    per_round = [count for run in runs for count in run.accepted_per_round if drafts and count]
    tokens = sum(run.new_tokens for run in runs)
    varied = [run for run in runs if not run.loops]
    devices = [run.devices for run in runs]
    each = len(runs) // max(cell.seeds, 1)
    by_seed = [runs[start : start + each] for start in range(0, len(runs), each)]
    flushes = max(len(per_round) - len(runs), 0) if drafts else 0
    firsts = [run.itl_s[0] for run in runs if run.itl_s]
    hit_rate = 1 - flushes / (tokens - len(runs)) if drafts and tokens > len(runs) else None
    entry: dict[str, Any] = {
        **method_and_place(cell.method, cell.options, cell.case),
        **({} if cell.setting is None else {"tuned": {"setting": dict(cell.setting)}}),
        "dataset": cell.dataset,
        "temperature": cell.temperature,
        "noise": cell.noise,
        "requests": len(runs),
        "tokens": tokens,
        "tokens_per_s": _speed(runs),
        "looping_requests": len(runs) - len(varied),
        f"tokens_per_s{WITHOUT_LOOPING}": _speed(varied) if varied else None,
        "tokens_per_s_by_seed": [_speed(own) for own in by_seed],
        "latency_ms_by_seed": [fmean(run.latency_s for run in own) * 1e3 for own in by_seed],
        "by_prompt": _by_prompt(runs, cell.prompts),
        **({} if max(cell.prompts) else {"by_chunk": _by_chunk(runs)}),
        "acceptance_length": fmean(per_round) if per_round else _mean(per_segment),
        "acceptance_per_segment": _mean(per_segment),
        "rounds": len(per_round),
        "flushes": flushes,
        "hit_rate": hit_rate,
        **_predicted(cell, hit_rate),
        "segments_by_tokens": _counted(per_segment),
        "ttft_ms": fmean(run.ttft_s for run in runs) * 1e3,
        "first_gap_ms": fmean(firsts) * 1e3 if firsts else None,
        "latency_ms": fmean(run.latency_s for run in runs) * 1e3,
        "itl_p50_ms": _milliseconds(gaps, 0.5),
        "itl_p99_ms": _milliseconds(gaps, 0.99),
        "segments": sum(run.segments for run in runs),
        "empty_segments": sum(run.empty_segments for run in runs),
        "prunes": sum(run.prunes for run in runs),
        "draft_layers": sum(run.draft_layers for run in runs),
        "draft_rows_sent": sum(run.draft_rows_sent for run in runs),
        "rollbacks": [sum(counts) for counts in zip(*(run.rollbacks for run in runs), strict=True)],
        "rows_computed": sum(stage.rows_computed for run in runs for stage in run.stages),
        "rows_for_nothing": sum(stage.for_nothing for run in runs for stage in run.stages),
        "rows_trimmed": sum(stage.rows_trimmed for run in runs for stage in run.stages),
        "computations_aborted": sum(stage.aborted for run in runs for stage in run.stages),
        "link_bytes": {
            **{
                used[0].device: sum(device.bytes_sent for device in used)
                for used in zip(*devices, strict=True)
            },
            "express": sum(run.express_bytes for run in runs),
        },
        "memory_gib": _memory(cell, [used[0].device for used in zip(*devices, strict=True)]),
        "use": {used[0].device: _use(used) for used in zip(*devices, strict=True)},
        "energy_j_per_token": _energy(devices, tokens),
        "measured_j_per_token": _measured(runs, tokens),
        "rows_in_flight": _over_time(runs, [run.rows_in_flight for run in runs]),
        "rows_alive_in_flight": _over_time(runs, [run.rows_alive_in_flight for run in runs]),
        **_bounds(runs, [bound for bound in bounds if bound is not None]),
        **_hierarchy(runs),
    }
    return {name: rounded(value) for name, value in entry.items()}


def _speed(runs: Sequence[RunRecord]) -> float | None:
    """Return the tokens after the first of each run over the time that they took; None if there are none."""
    decode_s = sum(run.decode_s for run in runs)
    return sum(run.new_tokens - 1 for run in runs) / decode_s if decode_s > 0 else None


def _by_prompt(runs: Sequence[RunRecord], prompts: Sequence[int]) -> dict[str, list[float]]:
    """Return the tokens after the first of each prompt's runs, and the seconds that they took.

    prompts: the number of each run's prompt.
    """
    count = max(prompts) + 1
    tokens, seconds = [0.0] * count, [0.0] * count
    for run, prompt in zip(runs, prompts, strict=True):
        tokens[prompt] += run.new_tokens - 1
        seconds[prompt] += run.decode_s
    return {"tokens": tokens, "seconds": seconds}


def _by_chunk(runs: Sequence[RunRecord]) -> dict[str, list[float]]:
    """Return the tokens of each CHUNK of the answers after the first token, and the seconds that they took.

    All methods put out the same tokens, so their chunks can be paired.
    """
    starts = [(run.itl_s, start) for run in runs for start in range(0, len(run.itl_s), CHUNK)]
    gaps = [itl_s[start : start + CHUNK] for itl_s, start in starts]
    return {"tokens": [float(len(each)) for each in gaps], "seconds": [math.fsum(each) for each in gaps]}


def _counted(values: Sequence[int]) -> list[int]:
    """Return how often each number from 0 on comes."""
    counts = Counter(values)
    return [counts[number] for number in range(max(values, default=-1) + 1)]


def _memory(cell: Cell, devices: Sequence[str]) -> dict[str, float] | None:
    """Return the GiB that each of the devices holds; None where nothing is emulated."""
    setup = cell.case.setup_of(cell.method)
    if not isinstance(setup, PipelineProfile):
        return None
    held = held_gib(setup, cell.capacity, drafts=cell.drafts)
    return {device: held[device] for device in devices}


def _predicted(cell: Cell, hit_rate: float | None) -> dict[str, float | None]:
    """Return the milliseconds between tokens by the papers' models of latency, where they have one.

    They have none of a pipeline that changes.
    """
    setup, found = cell.case.setup_of(cell.method), None
    if isinstance(setup, PipelineProfile) and not cell.case.events:
        found = predicted_latency(setup, cell.strategy, dict(cell.options), hit_rate)
    missed = None if found is None else found.with_misses
    return {
        "predicted_ms": None if found is None else found.without_misses * 1e3,
        "predicted_with_misses_ms": None if missed is None else missed * 1e3,
    }


def _milliseconds(gaps: Sequence[float], share: float) -> float | None:
    """Return a quantile of ascending seconds between tokens; None if no answer has a second token."""
    return quantile(gaps, share) * 1e3 if gaps else None


def _over_time(runs: Sequence[RunRecord], means: Sequence[float]) -> float:
    """Return the mean over the decode time of all runs, from the mean of each run."""
    decode_s = sum(run.decode_s for run in runs)
    weighted = sum(run.decode_s * mean for run, mean in zip(runs, means, strict=True))
    return weighted / decode_s if decode_s > 0 else 0.0


def _bounds(runs: Sequence[RunRecord], bounds: Sequence[RunBounds]) -> dict[str, float | None]:
    """Return the bounds and the share of each that was reached; all None if a run has no bounds."""
    tokens = [run.new_tokens for run in runs]
    known = len(bounds) == len(runs) > 0
    sent = bound_together(tokens, [bound.sent_tokens_per_s for bound in bounds]) if known else None
    alive = bound_together(tokens, [bound.alive_tokens_per_s for bound in bounds]) if known else None
    speed = _speed(runs)
    return {
        "crossing_ms": fmean(bound.trip_s for bound in bounds) * 1e3 if known else None,
        "bound_tokens_per_s": alive,
        "share_of_bound": None if alive is None or speed is None else speed / alive,
        "bound_sent_tokens_per_s": sent,
        "share_of_bound_sent": None if sent is None or speed is None else speed / sent,
    }


def _hierarchy(runs: Sequence[RunRecord]) -> dict[str, Any]:
    """Return the counts of a hierarchy's verifying models and the times of its models; nothing of others."""
    levels = list(zip(*(run.verifiers for run in runs), strict=True))
    if not levels:
        return {}
    return {
        "verifiers": [
            {
                **{name: sum(getattr(run, name) for run in level) for name in _COUNTS},
                **{name: added(getattr(run, name) for run in level) for name in _PLACES},
            }
            for level in levels
        ],
        "model_ms": [fmean(times) * 1e3 for times in zip(*(run.model_s for run in runs), strict=True)],
    }


def added(counts: Iterable[Sequence[int]]) -> list[int]:
    """Return the sums of counts by place; a shorter list has none at the places behind its end."""
    return [sum(place) for place in itertools.zip_longest(*counts, fillvalue=0)]


def _use(devices: Sequence[DeviceUsage]) -> dict[str, float]:
    return {
        "busy": fmean(device.busy for device in devices),
        "transferring": fmean(device.transferring for device in devices),
        "waiting": fmean(device.waiting for device in devices),
    }


def _energy(devices: Iterable[Sequence[DeviceUsage]], tokens: int) -> float | None:
    joules = [device.energy_j for run in devices for device in run]
    known = [energy for energy in joules if energy is not None]
    return sum(known) / tokens if len(known) == len(joules) and tokens else None


def _measured(runs: Sequence[RunRecord], tokens: int) -> float | None:
    known = [run.measured_j for run in runs if run.measured_j is not None]
    return sum(known) / tokens if len(known) == len(runs) and tokens else None


def _mean(values: Sequence[int]) -> float | None:
    return fmean(values) if values else None


def method_and_place(method: str, options: Options, case: Case) -> dict[str, Any]:
    """Return the fields of an entry that say which method ran where."""
    setup = case.setup_of(method)
    return {
        "method": method,
        "options": dict(options),
        "profile": case.profile,
        "emulated": isinstance(setup, PipelineProfile),
        "model": setup.title,
        "quant": setup.quant,
        "stages": setup.num_stages,
        "verification": setup.verification,
        "mbps": setup.mbps,
        "point": dict(case.point),
    }


def quantile(ascending: Sequence[float], share: float) -> float:
    """Return the smallest value that is not exceeded by a `share` of the values; 0 if there are none."""
    if not ascending:
        return 0.0
    return ascending[max(math.ceil(share * len(ascending)) - 1, 0)]


def rounded(value: Any) -> Any:
    """Round all numbers in a value to the printed precision, within lists and dictionaries too."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return value


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(path)
