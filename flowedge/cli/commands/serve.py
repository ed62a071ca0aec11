"""`flowedge serve`: pipelines behind an HTTP endpoint, and its API keys."""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowedge.agent.config_loading import load
from flowedge.agent.config_rendering import effective_toml
from flowedge.agent.logs import set_up_logs
from flowedge.cli.options import AsJson, Peers, choose_drafting, pipeline_peers
from flowedge.cli.orphan import ExitWithParent, stop_when_input_closes
from flowedge.cli.output import log_lines, say, say_json, say_text, warn
from flowedge.cli.setting_flags import OptionsOf, SettingFlags, Typed, with_setting_options
from flowedge.core.errors import BadRequestError
from flowedge.core.pipeline_config import PipelineConfig
from flowedge.core.request import DEFAULT_PRIORITY, DEFAULT_STRATEGY, Priority
from flowedge.gateway.access.keys import KeyFile, KeyLimits
from flowedge.gateway.config import GATEWAY_FORM, GatewaySettings

if TYPE_CHECKING:
    from flowedge.cli.pipelines.request import PipelineRequest

FLAGS = SettingFlags(
    GATEWAY_FORM,
    {
        "--listen": ("http", "listen"),
        "--pipelines": ("pipelines", "file"),
        "--keys": ("access", "keys"),
        "--keys-file": ("access", "keys_file"),
        "--tls-cert": ("http", "tls_cert"),
        "--tls-key": ("http", "tls_key"),
        "--root-path": ("http", "root_path"),
        "--trusted-proxy": ("http", "trusted_proxies"),
        "--allowed-host": ("http", "allowed_hosts"),
        "--cors-origin": ("http", "cors_origins"),
        "--open-metrics/--no-open-metrics": ("access", "open_metrics"),
        "--strict/--no-strict": ("limits", "strict"),
        "--cluster-dir": ("security", "cluster_dir"),
        "--insecure": ("security", "insecure"),
        "--log-format": ("log", "format"),
        "--log-level": ("log", "level"),
    },
    {
        "listen": "ADDRESS:PORT",
        "file": "FILE",
        "keys_file": "FILE",
        "tls_cert": "FILE",
        "tls_key": "FILE",
        "root_path": "PATH",
        "trusted_proxies": "ADDRESS",
        "allowed_hosts": "NAME",
        "cors_origins": "ORIGIN",
        "cluster_dir": "DIR",
    },
)

serve = typer.Typer(
    help="Serve a pipeline over HTTP: OpenAI's API, and a page for browsers.",
    invoke_without_command=True,
    add_completion=False,
)
keys = typer.Typer(help="Make, list and remove API keys.", no_args_is_help=True, add_completion=False)
serve.add_typer(keys, name="keys")

KeysFile = Annotated[
    Path | None, typer.Option("--keys-file", metavar="FILE", help="File of the keys. Default: as configured.")
]


@serve.callback()
@FLAGS.added_to
@with_setting_options
def serve_pipelines(
    context: typer.Context,
    *,
    pipeline: Annotated[Typed, OptionsOf(PipelineConfig, defaults={"model": ""})],
    stages: Annotated[
        int | None, typer.Option(min=1, help="Start a draft node and N stages on this machine.")
    ] = None,
    peers: Peers = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the model for clients. Default: its own.")
    ] = None,
    alias: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Further name of the model; repeatable.")
    ] = None,
    no_keys: Annotated[
        bool,
        typer.Option("--no-keys", help="Let anyone in who can connect, also beyond loopback; as --keys off."),
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help=f"Configuration file. Default: {GATEWAY_FORM.default_file}, if it exists."
        ),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print every setting with its origin, and exit.")
    ] = False,
    exit_with_parent: ExitWithParent = False,
    **flags: Any,
) -> None:
    """Serve a pipeline over HTTP: OpenAI's API, and a page for browsers.

    Without --model, the pipeline that runs on the network is served, of whatever model it is. With --model
    and without --stages, --peers and --pipelines, a pipeline of that model that is ready, or else idle
    agents.

    Flags take precedence over environment variables (FLOWEDGE_SERVE_HTTP__LISTEN), and those over the
    configuration file.
    """
    from flowedge.cli.pipelines.request import requested_pipeline

    if context.invoked_subcommand is not None:
        return
    if no_keys:
        flags["keys"] = "off"
    effective = load(GATEWAY_FORM, FLAGS.given(flags), config)
    if print_config:
        say_text(effective_toml(GATEWAY_FORM, effective))
        return
    if exit_with_parent:
        stop_when_input_closes()
    settings = effective.config
    set_up_logs(settings.log, platform.node())
    if settings.log.format == "json":
        log_lines()
    drafting = choose_drafting(pipeline["model"], pipeline["drafter"], DEFAULT_STRATEGY)
    agents = None if peers is None else pipeline_peers(peers)
    request = requested_pipeline(pipeline, drafting, stages=stages, peers=agents, wait_s=None)
    if settings.pipelines.file is not None and (stages is not None or peers is not None):
        raise BadRequestError("give --stages or --peers, or the file of --pipelines, which names its agents")
    names = (name or "", tuple(alias or ()))
    raise typer.Exit(_serve(settings, request, names, drafting.notice))


def _serve(
    settings: GatewaySettings, request: PipelineRequest, names: tuple[str, tuple[str, ...]], notice: str
) -> int:
    from flowedge.cli.gateway_entries import open_declared, open_entry
    from flowedge.cli.screens.answer_screen import AnswerScreen
    from flowedge.cli.trust import choose_credentials
    from flowedge.gateway.pipelines.opening import DeviceProgress
    from flowedge.gateway.process import check_settings, serve

    check_settings(settings)  # before anything is started
    choose_credentials(
        None if settings.security.cluster_dir is None else Path(settings.security.cluster_dir),
        settings.security.insecure,
    )
    screen, progress = AnswerScreen(), DeviceProgress()
    if settings.access.keys == "off" and not settings.http.is_local:
        warn(f"--no-keys: anyone who can connect to {settings.http.listen} may use this gateway")
    if settings.pipelines.file is not None:
        opening = open_declared(settings.pipelines.file, screen, progress)
    else:
        if notice and not request.is_made_already:
            screen.note(notice)
        opening = open_entry(request, names, screen, progress)
    return serve(settings, opening, progress, _announce, _announce_models)


def _announce(url: str) -> None:
    """Say where the gateway is, on standard output, which a person or a program reads."""
    say(f"flowedge serve: listening on {url.split('//')[1].split('/', maxsplit=1)[0]}")
    say(f"OpenAI's API: {url}v1    page: {url}    Ctrl-C ends it")


def _announce_models(gateway: Any) -> None:
    models = ", ".join(model.name for model in gateway.pipelines.models()) or "none so far"
    say(f"models: {models}")
    if gateway.problem:
        warn(gateway.problem)


@keys.command()
def add(
    name: Annotated[str, typer.Argument(help="Name of the key, for you and for the log.")],
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="Requests a minute.")] = None,
    concurrent: Annotated[int | None, typer.Option(min=1, help="Requests at the same time.")] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option(min=1, help="Tokens of prompts and answers a minute.")
    ] = None,
    tokens_per_day: Annotated[
        int | None, typer.Option(min=1, help="Tokens of prompts and answers a day.")
    ] = None,
    priority: Annotated[
        Priority, typer.Option(help="Of its requests, where several wait.")
    ] = DEFAULT_PRIORITY,
    keys_file: KeysFile = None,
) -> None:
    """Make a key and print it, once; a gateway that runs knows it within seconds. No limit is the default."""
    limits = KeyLimits(requests_per_minute, concurrent, tokens_per_minute, tokens_per_day)
    file = _file(keys_file)
    say(file.add(name, priority, limits))
    warn(f"{file.path} has its hash only: keep the key now")


@keys.command("list")
def list_keys(keys_file: KeysFile = None, as_json: AsJson = False) -> None:
    """List the keys: name, when it was made, limits. The keys themselves are known to nobody."""
    from flowedge.cli.screens.tables import Column, ColumnKind, print_table

    rows = [
        {
            "name": key.name,
            "created": time.strftime("%Y-%m-%d %H:%M", time.localtime(key.created)),
            "priority": key.priority,
            "requests/min": key.limits.requests_per_minute,
            "concurrent": key.limits.concurrent,
            "tokens/min": key.limits.tokens_per_minute,
            "tokens/day": key.limits.tokens_per_day,
        }
        for key in _file(keys_file).read()
    ]
    if as_json:
        say_json(rows)
        return
    numbers = ("requests/min", "concurrent", "tokens/min", "tokens/day")
    limits = [Column(title, ColumnKind.WHOLE, right=True) for title in numbers]
    print_table(
        ("name", Column("created", ColumnKind.WHOLE, drop=1), "priority", *limits),
        [["-" if cell is None else str(cell) for cell in row.values()] for row in rows],
    )


@keys.command()
def remove(
    name: Annotated[str, typer.Argument(help="Name of the key.")],
    keys_file: KeysFile = None,
) -> None:
    """Remove a key; a gateway that runs refuses it within seconds."""
    _file(keys_file).remove(name)
    say(f"removed {name}")


def _file(named: Path | None) -> KeyFile:
    return KeyFile(named or load(GATEWAY_FORM).config.access.keys_path)
