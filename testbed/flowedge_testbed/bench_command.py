"""The `bench` command, which this distribution adds to the `flowedge` CLI."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from flowedge.cli.options import ClusterDir, Insecure
from flowedge.cli.trust import choose_credentials

REAL = "real"  # the clock of agents on the network
PAPERS = "papers"  # in the place of a scenario: all experiments of a paper
RUNS = Path("runs")  # of the results, if --out is not given


class DraftNoise(str, Enum):
    """Which kinds of drafting a benchmark runs."""

    PLAIN = "plain"
    SHARED = "shared"
    BOTH = "both"


def bench(
    scenario: Annotated[
        str,
        typer.Argument(
            metavar="SCENARIO",
            help="Name of a shipped scenario, or a .yaml file; `papers` for the experiments of --paper.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory for the results; finished runs in it are kept. Default: runs/SCENARIO, "
            "or runs/NAME of --paper.",
        ),
    ] = None,
    paper: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With `papers`: flowspec, pipedec, specpipe, pipespec or pipeinfer; or a single experiment, "
            "such as flowspec/table1.",
        ),
    ] = None,
    clock: Annotated[
        str | None,
        typer.Option(help="Source of time: virtual, replay, paced or real (testbed/docs/benchmarks.md)."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use few prompts and tokens: under three minutes on two cores.")
    ] = False,
    strategies: Annotated[str | None, typer.Option(metavar="NAME,...", help="Methods to compare.")] = None,
    datasets: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Datasets of the scenario to use.")
    ] = None,
    temperatures: Annotated[
        str | None, typer.Option(metavar="NUMBER,...", help="Temperatures to use.")
    ] = None,
    places: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Places of the scenario to use.")
    ] = None,
    noise: Annotated[
        DraftNoise | None,
        typer.Option(help="Drafting above temperature 0, as in generate; `both` runs each method twice."),
    ] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Number of prompts of each dataset.")] = None,
    model: Annotated[
        str | None, typer.Option(help="The real target: bundled, a directory, a GGUF file or a hub id.")
    ] = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(help="The real drafter, as in generate; repeated to join several, the best first."),
    ] = None,
    middle: Annotated[
        str | None,
        typer.Option(metavar="DIR,...", help="Middle models of pipespec, the smallest first."),
    ] = None,
    paths: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="True paths from a file of --save-paths, or a shipped one, in place of a target.",
        ),
    ] = None,
    save_paths: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep the true paths of all runs in a .safetensors file."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(metavar="float16|bfloat16|float32", help="Dtype of the real models. Default: float32."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="cpu|cuda|auto",
            help="Device of the real models. Default: a GPU if there is one, the CPU for bundled models.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory of the dataset files. Default: the working directory for a shipped scenario, "
            "otherwise the directory of the .yaml file.",
        ),
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="Number of processes that carry out runs.")] = 2,
    cluster_dir: ClusterDir = None,
    insecure: Insecure = False,
) -> None:
    """Run a scenario; write results.json, run.json, report.md and plots.

    Options replace the scenario's values. The same command continues a benchmark that was interrupted.
    `papers` runs all experiments of a paper, and prints their figures beside the paper's.
    """
    from flowedge.core.errors import BadRequestError  # noqa: PLC0415
    from flowedge.core.pipeline_config import drafter_names  # noqa: PLC0415
    from flowedge.core.request import NOISES, parse_noise  # noqa: PLC0415
    from flowedge.models.host.libraries import import_libraries  # noqa: PLC0415
    from flowedge_testbed.scenario import find_scenario  # noqa: PLC0415

    # before the libraries, whose import takes seconds
    file = _experiments_of(paper) if scenario == PAPERS else find_scenario(scenario)
    if paper is not None and scenario != PAPERS:
        raise BadRequestError(f"--paper {paper} goes with `papers`; {scenario} is a single scenario")
    if save_paths is not None and scenario == PAPERS:
        raise BadRequestError(
            f"--save-paths {save_paths}: it keeps the true paths of a single scenario; name one, not `papers`"
        )

    if clock == REAL or cluster_dir is not None or insecure:
        choose_credentials(cluster_dir, insecure)
    import_libraries()
    from flowedge_testbed.bench.benchmark import run_bench  # noqa: PLC0415
    from flowedge_testbed.bench.options import BenchOptions  # noqa: PLC0415
    from flowedge_testbed.bench.progress import bench_progress  # noqa: PLC0415
    from flowedge_testbed.papers.paper_bench import PaperBench  # noqa: PLC0415

    def words(text: str | None) -> tuple[str, ...] | None:
        return None if text is None else tuple(word.strip() for word in text.split(",") if word.strip())

    try:
        degrees = None if temperatures is None else tuple(float(word) for word in words(temperatures) or ())
    except ValueError as error:
        raise BadRequestError(f"--temperatures {temperatures}: not numbers separated by commas") from error
    options = BenchOptions(
        scenario=file,
        out=RUNS / file.stem if out is None else out,
        clock=clock,
        quick=quick,
        strategies=words(strategies),
        datasets=words(datasets),
        temperatures=degrees,
        places=words(places),
        noise=None if noise is None else NOISES if noise is DraftNoise.BOTH else (parse_noise(noise.value),),
        samples=samples,
        model=model,
        drafter=None if not drafter else drafter_names(drafter),
        middles=words(middle),
        paths=paths,
        save_paths=save_paths,
        dtype=dtype,
        device=device,
        data=data,
        processes=processes,
        cluster_dir=cluster_dir,
        insecure=insecure,
    )
    with bench_progress() as progress:
        if paper is None:
            report = run_bench(options, progress)
        else:
            report, text = PaperBench(options, progress).run(paper)
            print(text)
    print(f"{report}")


def _experiments_of(paper: str | None) -> Path:
    """Return the file of a paper's experiments.

    Raises:
        BadRequestError: when no paper is named, or one that has no file.
    """
    from flowedge.core.errors import BadRequestError  # noqa: PLC0415
    from flowedge_testbed.papers.declaration import PAPERS as KNOWN  # noqa: PLC0415
    from flowedge_testbed.papers.declaration import paper_file, read_paper  # noqa: PLC0415

    if paper is None:
        raise BadRequestError(f"papers needs --paper: {', '.join(KNOWN)}")
    name, _, experiment = paper.partition("/")
    read_paper(name).chosen(experiment)
    return paper_file(name)
