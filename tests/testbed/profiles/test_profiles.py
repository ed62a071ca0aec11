"""Profiles and scenarios, and their refusals: with the file, the key and the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from flowedge.core.errors import BadRequestError, CapacityError
from flowedge.core.pipeline_config import Quantisation
from flowedge.models.quant.quantize import QUANTISATIONS
from flowedge.planning.memory_fit import require_fit, stage_parts
from flowedge.planning.profile import shipped
from flowedge.planning.profile.model import WEIGHT_BYTES
from flowedge_testbed.plan import cases
from flowedge_testbed.profiles import library
from flowedge_testbed.scenario import Scenario, read_scenario
from tests.testbed.conftest import ScenarioFile

SCENARIOS = sorted((Path(__file__).parents[3] / "testbed" / "flowedge_testbed" / "scenarios").glob("*.yaml"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_shipped_scenarios_are_valid_and_fit(path: Path) -> None:
    scenario = read_scenario(path)
    for case in cases(scenario, path.parent):
        if scenario.clock != "real":
            require_fit(case.emulation, 2048)
    assert scenario.quickened().samples <= scenario.samples


@pytest.mark.parametrize("kind", ["devices", "models", "links"])
def test_shipped_profiles_are_valid(kind: str) -> None:
    read = {"devices": library.device, "models": library.model, "links": library.link}[kind]
    names = [path.stem for path in (shipped.SHIPPED / kind).glob("*.yaml")]
    assert names
    for name in names:
        assert read(name).source


GOOD_LINK: dict[str, Any] = {"title": "x", "source": "y", "mbps": 100, "latency_ms": 1}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mbps": -1}, ["mbps", "greater than 0", "-1"]),
        ({"mbps": "fast"}, ["mbps", "number", "fast"]),
        ({"latency_ms": None}, ["latency_ms", "number"]),
        ({"speed": 3}, ["speed", "not permitted"]),
    ],
)
def test_a_bad_profile_is_explained(tmp_path: Path, change: dict[str, Any], said: list[str]) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump({**GOOD_LINK, **change}))
    with pytest.raises(BadRequestError) as caught:
        library.link("bad.yaml", tmp_path)
    for words in [str(path), *said]:
        assert words in str(caught.value)


@pytest.mark.parametrize("text", ["", "- 1\n- 2", "a: [1", "\x00"])
def test_what_is_no_profile_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(BadRequestError, match=r"bad\.yaml"):
        library.device("bad.yaml", tmp_path)


def test_an_unknown_profile_names_the_known() -> None:
    with pytest.raises(BadRequestError, match="orin-nano-8gb"):
        library.device("toaster")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"strategies": ["flowspec", "magic"]}, "unknown strategy 'magic'"),
        ({"variants": {"slow": {"strategy": "magic"}}}, "unknown strategy 'magic'"),
        ({"variants": {"auto": {"strategy": "auto"}}}, "variant 'auto' has the name of a strategy"),
        (
            {"strategies": ["slow"], "variants": {"slow": {"strategy": "auto", "options": {"depth": 3}}}},
            "unknown strategy option depth",
        ),
        (
            {"strategies": ["t"], "variants": {"t": {"strategy": "specpipe", "tuned": {"width": [8, 999]}}}},
            "strategy option width is 999",
        ),
        (
            {
                "strategies": ["t"],
                "variants": {"t": {"strategy": "specpipe", "tuned": {"width": [8]}}},
                "load": {"clients": [1]},
            },
            "a load takes no tuned variants",
        ),
        ({"sweep": {"colour": [1]}}, "unknown sweep axis 'colour'"),
        ({"samples": 0}, "key samples"),
        ({"strategy_options": {"flowspec": {"dept": 3}}}, "unknown strategy option dept"),
        ({"emulated": [{"model": "llama2-7b", "quant": "int3"}]}, "emulated.0.quant"),
        ({"clock": "sundial"}, "key clock"),
    ],
)
def test_a_bad_scenario_is_explained(scenario_file: ScenarioFile, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        read_scenario(scenario_file(**changes))
    assert said in str(caught.value)


def _cases(path: Path) -> list[Any]:
    return cases(read_scenario(path), path.parent)


def test_a_split_must_be_the_models_layers(scenario_file: ScenarioFile) -> None:
    emulated = [{"model": "llama2-7b", "split": [8, 8, 8, 9]}]
    with pytest.raises(BadRequestError, match=r"\[8, 8, 8, 9\] is not the 32 layers"):
        _cases(scenario_file(emulated=emulated))


def test_hops_must_be_devices(scenario_file: ScenarioFile) -> None:
    links = {"default": {"profile": "lan-150"}, "hops": {"v9": {"profile": "gigabit"}}}
    with pytest.raises(BadRequestError, match=r"v9 is not a device; there are v1, v2, v3, v4, d0"):
        _cases(scenario_file(links=links))


def test_hops_and_sweeps_change_links(scenario_file: ScenarioFile) -> None:
    links = {"default": {"profile": "lan-150"}, "hops": {"d0": {"profile": "gigabit", "latency_ms": 9}}}
    made = _cases(scenario_file(links=links, sweep={"stages": [2, 3]}))
    assert [len(case.emulation.stages) for case in made] == [2, 3]
    assert made[0].emulation.split == (16, 16)
    assert [link.mbps for link in made[0].emulation.links] == [150, 150, 940]
    assert made[0].emulation.links[-1].latency_ms == 9
    swept = _cases(scenario_file(links=links, sweep={"mbps": [10]}))
    assert {link.mbps for link in swept[0].emulation.links} == {10}


def test_a_pipeline_that_does_not_fit_is_refused_with_the_sums(scenario_file: ScenarioFile) -> None:
    [case] = _cases(scenario_file(emulated=[{"model": "llama2-13b"}]))
    with pytest.raises(CapacityError) as caught:
        require_fit(case.emulation, 1000)
    parts = stage_parts(case.emulation, 0, 1000)
    # 10 layers of 4 * 5120^2 + 3 * 5120 * 13824 weights, 2 bytes each
    assert parts["10 layers in fp16"] == 10 * (4 * 5120**2 + 3 * 5120 * 13824) * 2
    assert parts["KV of 1000 rows"] == 10 * 2 * 5120 * 2 * 1000
    said = str(caught.value)
    assert "stage 1 does not fit on Jetson Orin Nano 8 GB" in said
    assert f"{sum(parts.values()) / 2**30:.2f} GiB" in said
    assert "5.60 GiB are usable" in said


def test_quick_keeps_what_it_does_not_name() -> None:
    path = next(p for p in SCENARIOS if p.stem == "depth")
    quick = read_scenario(path).quickened()
    assert isinstance(quick, Scenario)
    assert quick.sweep == {"option.depth": [3, 6], "option.expand_depth": [3, 6]}
    assert list(quick.datasets) == ["mt_bench"]


def test_what_is_emulated_can_be_quantised_as_what_runs() -> None:
    assert get_args(Quantisation) == QUANTISATIONS
    assert set(WEIGHT_BYTES) == set(QUANTISATIONS)
