"""The sizes of a model, as `flowedge inspect` shows them. Imports torch."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from flowedge.cli.output import say_json
from flowedge.cli.screens.tables import Column, ColumnKind, PlainTable, line, output_console, plain_table
from flowedge.drafting.choice import MTP
from flowedge.drafting.drafter_format import DEFAULT_FORMAT
from flowedge.drafting.heads.mtp_head import FORMATS, has_mtp, mtp_bytes
from flowedge.models.check.inspection import ModelSizes, inspect_checkpoint
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.host.payloads import torch_dtype
from flowedge.models.quant.quantize import linear_bytes
from flowedge.planning.fit import Demand, least_devices, most_layers, placement_of


def show_model(
    model: str,
    dtype: str,
    quants: list[str],
    *,
    kv: str,
    devices: int | None,
    memory: float | None,
    context: int,
    as_json: bool,
) -> None:
    """Print the sizes of a model as the options of the command say; no quantisation stands for all."""
    checkpoint = Checkpoint.open(model)
    sizes = inspect_checkpoint(checkpoint, dtype, quants)
    token = sizes.kv_bytes[sizes.dtype if kv == "native" else kv]
    kv_bytes = [size * context for size in token]
    fits = [] if memory is None else _fits(sizes, kv_bytes, int(memory * 2**30), devices)
    draft_head, ahead = _draft_head(sizes), _ahead(checkpoint, torch_dtype(dtype))
    if as_json:
        content = {"model": model, **dataclasses.asdict(sizes), "context": context}
        proposed = {"tokens": DEFAULT_FORMAT.tokens(sizes.vocab_size), "bytes": draft_head}
        drafting = {"draft_head": proposed, "mtp_bytes": ahead}
        say_json({**content, **drafting, "kv": kv, "memory_gib": memory, "fits": fits})
    else:
        _print(model, sizes, draft_head, ahead, context, memory, fits)


def _draft_head(sizes: ModelSizes) -> dict[str, int]:
    """Return the bytes of the LM head that a drafter proposes with, by format; "none" is in the dtype."""
    rows, dtype = DEFAULT_FORMAT.tokens(sizes.vocab_size), torch_dtype(sizes.dtype)
    return {quant: linear_bytes(rows, sizes.hidden_size, quant, dtype) for quant in FORMATS}


def _ahead(checkpoint: Checkpoint, dtype: torch.dtype) -> dict[str, int]:
    """Return the bytes of the layer that predicts further tokens, by format; empty where there is none."""
    if not has_mtp(checkpoint):
        return {}
    quants = FORMATS if checkpoint.quant == "none" else FORMATS[:1]
    return {quant: mtp_bytes(checkpoint, quant, dtype) for quant in quants}


def _fits(sizes: ModelSizes, kv: list[int], memory: int, devices: int | None) -> list[dict[str, Any]]:
    """Return, for each quantisation, how many layers fit on a device and how many devices are needed.

    kv: the bytes of each layer's KV cache.
    """
    rows: list[dict[str, Any]] = []
    for quant, layers in sizes.layer_bytes.items():
        demand = Demand(
            [
                size + (sizes.state_bytes if index in sizes.recurrent_layers else 0) + kv[index]
                for index, size in enumerate(layers)
            ],
            sizes.embedding_bytes[quant],
            sizes.norm_bytes,
            sizes.head_bytes[quant],
        )
        row: dict[str, Any] = {
            "quant": quant,
            "layers_a_device": most_layers(demand, memory),
            "least_devices": least_devices(demand, memory),
        }
        if devices is not None:
            placement = placement_of(demand, devices, memory)
            row |= {"devices": devices, "split": None, "stage_bytes": None, "fits": False}
            row |= {} if placement is None else dataclasses.asdict(placement)
        rows.append(row)
    return rows


def _print(
    model: str,
    sizes: ModelSizes,
    draft_head: dict[str, int],
    ahead: dict[str, int],
    context: int,
    memory: float | None,
    fits: list[dict[str, Any]],
) -> None:
    console = output_console()
    by = f" by {sizes.stored_by}" if sizes.stored_by else ""
    stored = "" if sizes.stored_quant == "none" else f", stored in {sizes.stored_quant}{by}"
    count = sizes.parameters
    parameters = "" if count is None else f", {count / 1e6:,.1f} million parameters"
    console.print(line(f"{model}: {sizes.model_type}{parameters}{stored}"))
    console.print(
        f"{sizes.num_layers} layers of width {sizes.hidden_size}, {sizes.vocab_size} tokens, "
        f"at most {sizes.max_positions} positions"
    )
    tied = ", the same tensor" if sizes.tied else ""
    for quant, size in _first_of_each(sizes.head_bytes).items():
        form, embedding = _format(quant, sizes.dtype), _size(sizes.embedding_bytes[quant])
        console.print(
            f"in {form}: embedding {embedding} (first stage), LM head {_size(size)} (draft node){tied}"
        )
    console.print(
        f"LM head of the {DEFAULT_FORMAT.tokens(sizes.vocab_size)} tokens that a drafter proposes: "
        f"{_by_format(draft_head, sizes.dtype)}"
    )
    if ahead:
        console.print(
            f"layer that predicts further tokens (--drafter {MTP}): {_by_format(ahead, sizes.dtype)}"
        )
    console.print()
    console.print(_layer_table(sizes))
    console.print()
    console.print(_kv_table(sizes, context))
    if memory is not None:
        console.print(
            f"\nWith {memory:g} GiB a device and {context} tokens of context "
            f"(one device is the draft node; its drafter is not counted):"
        )
        console.print(_fit_table(fits, sizes.dtype))


def _by_format(sizes: dict[str, int], dtype: str) -> str:
    return ", ".join(f"{_size(size)} in {_format(quant, dtype)}" for quant, size in sizes.items())


def _first_of_each(sizes: dict[str, int]) -> dict[str, int]:
    """Return the first key of each size."""
    return {next(key for key, other in sizes.items() if other == size): size for size in sizes.values()}


def _layer_table(sizes: ModelSizes) -> PlainTable:
    table = plain_table("layers in", right=("a layer", "all layers", "bits a weight"))
    bits_each = 32 if sizes.dtype == "float32" else 16
    weights = sum(sizes.layer_bytes["none"]) * 8 / bits_each if "none" in sizes.layer_bytes else None
    for quant, layers in sizes.layer_bytes.items():
        least, most = min(layers), max(layers)
        layer = _size(most) if least == most else f"{_size(least)} to {_size(most)}"
        bits = "" if weights is None else f"{sum(layers) * 8 / weights:.2f}"
        table.add_row(_format(quant, sizes.dtype), layer, _size(sum(layers)), bits)
    return table


def _kv_table(sizes: ModelSizes, context: int) -> PlainTable:
    columns = ("a token, a layer", "a token", f"{context} tokens")
    table = plain_table("keys and values in", right=columns)
    for dtype, layers in sizes.kv_bytes.items():
        own, token = sorted({size for size in layers if size}), sum(layers)
        layer = " to ".join(_size(size) for size in (own[:1] + own[1:][-1:])) or _size(0)
        table.add_row(dtype, layer, _size(token), _size(token * context))
    if sizes.recurrent_layers:
        states = sizes.state_bytes * len(sizes.recurrent_layers)
        table.add_row("states, of any length", _size(sizes.state_bytes), "", _size(states))
    return table


def _fit_table(fits: list[dict[str, Any]], dtype: str) -> PlainTable:
    columns = [
        Column("layers a device", ColumnKind.WHOLE, right=True, drop=1),
        Column("devices needed", ColumnKind.WHOLE, right=True),
    ]
    asked = fits[0].get("devices") if fits else None
    if asked is not None:
        columns += [
            Column(f"split over {asked} devices", ColumnKind.WHOLE),
            Column("largest stage", ColumnKind.WHOLE, right=True, drop=2),
            Column("fits", ColumnKind.WHOLE),
        ]
    table = plain_table("layers in", *columns)
    for row in fits:
        cells = [
            _format(row["quant"], dtype),
            str(row["layers_a_device"]),
            str(row["least_devices"] or "does not fit"),
        ]
        if asked is not None:
            split, sizes = row["split"], row["stage_bytes"]
            cells += (
                ["more stages than layers", "", "no"]
                if split is None
                else [",".join(map(str, split)), _size(max(sizes)), "yes" if row["fits"] else "no"]
            )
        table.add_row(*cells)
    return table


def _format(quant: str, dtype: str) -> str:
    """Return the format of a layer's weights: the quantisation, or the dtype without one."""
    return dtype if quant == "none" else quant


def _size(count: int) -> str:
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
