"""How far auto is ahead of the best other method at each place, and of plain decoding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

from flowedge.core.request import Noise
from flowedge.strategies.auto.auto import Auto
from flowedge.strategies.autoregressive import Autoregressive
from flowedge_testbed.report.entries import Entry, mean_of, place_of, unique
from flowedge_testbed.report.figures.spread import prompts_needed, ratio_half_width
from flowedge_testbed.results import rounded

HELD = 0.99  # a smaller share of another method's tokens/s counts as behind it


@dataclass(frozen=True)
class Lead:
    """Tokens/s of auto and of others at a place, temperature and kind of drafting; means over datasets.

    Attributes:
        place: the name of the pipeline, with the point of the sweep if there is one.
        rival: the best other method, plain decoding included; rival_speed: its tokens/s.
        plain_speed: of plain autoregressive decoding; None if it was not run.
        half_width: of `ratio` over the prompts, or chunks of the answers (see spread.py); None if not known.
        prompts: of the dataset that has the fewest.
        setting: of the best other method: the tuned values, {} for its own; None if it is not tuned.
        untuned_speed: tokens/s of the best other method, if all have their own settings.
    """

    place: str
    temperature: float
    noise: Noise
    speed: float
    rival: str
    rival_speed: float
    plain_speed: float | None
    half_width: float | None = None
    prompts: int = 1
    setting: Mapping[str, float] | None = None
    untuned_speed: float | None = None

    @property
    def rival_label(self) -> str:
        """The name of the best other method, with its setting if it is tuned."""
        return self.rival if self.setting is None else f"{self.rival}: {setting_label(self.setting)}"

    @property
    def untuned_ratio(self) -> float:
        """Tokens/s of auto over the best other's, if all others have their own settings."""
        return self.speed / (self.untuned_speed or self.rival_speed)

    @property
    def surely_behind(self) -> bool:
        """Whether the whole interval lies below HELD."""
        return self.half_width is not None and self.ratio + self.half_width < HELD

    @property
    def by_chance(self) -> bool:
        """Whether the interval holds 1, or there is none."""
        return self.half_width is None or abs(self.ratio - 1) <= self.half_width

    @property
    def prompts_needed(self) -> int | None:
        """The prompts of a dataset that tell a difference of DIFFERENCE from chance; None from one prompt."""
        if self.half_width is None or self.prompts < 2:
            return None
        return prompts_needed(self.half_width / self.ratio, self.prompts)

    @property
    def ratio(self) -> float:
        """Tokens/s of auto over the best other's."""
        return self.speed / self.rival_speed

    @property
    def plain_ratio(self) -> float | None:
        """Tokens/s of auto over plain decoding's."""
        return None if self.plain_speed is None else self.speed / self.plain_speed

    def to_dict(self) -> dict[str, Any]:
        """Return the content for results.json."""
        content = {
            "place": self.place,
            "temperature": self.temperature,
            "noise": self.noise,
            "tokens_per_s": self.speed,
            "best_other": self.rival,
            **({} if self.setting is None else {"best_other_setting": dict(self.setting)}),
            "best_other_tokens_per_s": self.rival_speed,
            "plain_tokens_per_s": self.plain_speed,
            "ratio_to_best_other": self.ratio,
            **({} if self.untuned_speed is None else {"ratio_to_best_other_untuned": self.untuned_ratio}),
            "ratio_to_plain": self.plain_ratio,
            "half_width": self.half_width,
            "prompts_needed": self.prompts_needed,
        }
        return {name: rounded(value) for name, value in content.items()}


@dataclass(frozen=True)
class LeadSummary:
    """Many leads in a few figures.

    Attributes:
        mean: geometric mean of auto over the best other.
        worst: the least lead over the best other; worst_plain: over plain decoding, None if that was not run.
        untuned_mean: the same if the others have their own settings; None if no other method is tuned.
        behind: leads with less than HELD of the best other's tokens/s; behind_plain: of plain decoding's.
    """

    mean: float
    untuned_mean: float | None
    worst: Lead
    worst_plain: Lead | None
    behind: tuple[Lead, ...]
    behind_plain: tuple[Lead, ...]

    @classmethod
    def of(cls, leads: Sequence[Lead]) -> LeadSummary:
        """Return the summary of one lead or more."""
        known = [(lead.plain_ratio, lead) for lead in leads if lead.plain_ratio is not None]
        return cls(
            mean=geometric_mean(lead.ratio for lead in leads),
            untuned_mean=(
                geometric_mean(lead.untuned_ratio for lead in leads)
                if any(lead.untuned_speed is not None for lead in leads)
                else None
            ),
            worst=min(leads, key=lambda lead: lead.ratio),
            worst_plain=min(known, key=lambda pair: pair[0])[1] if known else None,
            behind=tuple(lead for lead in leads if lead.ratio < HELD),
            behind_plain=tuple(lead for ratio, lead in known if ratio < HELD),
        )


def setting_label(setting: Mapping[str, float]) -> str:
    """Return the values of a tuned method in words, such as "width 32, step_levels 2"."""
    return ", ".join(f"{name} {value:g}" for name, value in setting.items()) or "its own setting"


def leads(entries: Sequence[Entry]) -> list[Lead]:
    """Return the lead of auto at every place where it and another method were measured.

    Methods that draft are compared with the same kind of drafting as auto's.
    """
    return [
        lead
        for temperature in unique(entry["temperature"] for entry in entries)
        for noise in unique(entry["noise"] for entry in entries if entry["temperature"] == temperature)
        for place, mine in _by_place(e for e in entries if e["temperature"] == temperature)
        if (lead := _lead(place, temperature, noise, mine)) is not None
    ]


def leads_content(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return all leads and their summary for results.json."""
    found = leads(entries)
    content: dict[str, Any] = {"places": [lead.to_dict() for lead in found]}
    if found:
        whole = LeadSummary.of(found)
        content |= {
            "geometric_mean": rounded(whole.mean),
            "worst": whole.worst.to_dict(),
            "worst_beside_plain": None if whole.worst_plain is None else whole.worst_plain.to_dict(),
            "behind_best_other": len(whole.behind),
            "surely_behind_best_other": sum(lead.surely_behind for lead in found),
            "behind_plain": len(whole.behind_plain),
        }
    return content


def _by_place(entries: Iterable[Entry]) -> Iterator[tuple[str, list[Entry]]]:
    places: dict[str, list[Entry]] = {}
    for entry in entries:
        places.setdefault(place_of(entry), []).append(entry)
    yield from places.items()


def _lead(place: str, temperature: float, noise: Noise, entries: Sequence[Entry]) -> Lead | None:
    speeds: dict[str, float] = {}
    found: dict[str, list[Entry]] = {}
    for method in unique(entry["method"] for entry in entries):
        kind = "plain" if method == Autoregressive.name else noise
        own = [entry for entry in entries if (entry["method"], entry["noise"]) == (method, kind)]
        speed = mean_of(own, "tokens_per_s")
        if speed:
            speeds[method], found[method] = speed, own
    others = {method: speed for method, speed in speeds.items() if method != Auto.name}
    if Auto.name not in speeds or not others:
        return None
    rival = max(others, key=lambda method: others[method])
    tuned = {method: found[method][0]["tuned"] for method in others if "tuned" in found[method][0]}
    untuned = {method: speed / (tuned.get(method, {}).get("gain") or 1) for method, speed in others.items()}
    return Lead(
        place,
        temperature,
        noise,
        speeds[Auto.name],
        rival,
        others[rival],
        others.get(Autoregressive.name),
        ratio_half_width(found[Auto.name], found[rival], chunks=True),
        min(len(entry["by_prompt"]["tokens"]) for entry in found[Auto.name]),
        tuned[rival]["setting"] if rival in tuned else None,
        max(untuned.values()) if tuned else None,
    )
