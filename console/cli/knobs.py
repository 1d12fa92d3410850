"""`schedtop knobs`: the limits of running engines, for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import zip_longest
from typing import Any

import click
from schedtop.console.cli.engine_flags import TOKEN_FILE
from schedtop.console.cli.errors import FAILED, CommandError, say
from schedtop.console.cli.fleet import expand, is_page
from schedtop.console.cli.output import show, show_json
from schedtop.console.cli.set_limits import (
    RunningEngine,
    follow_trials,
    open_engines,
    parse_changes,
    set_all,
)
from schedtop.engine.contract.commands import CONFIRM_WITHIN_S, MAX_TRIAL_S
from schedtop.engine.contract.knobs import BY_NAME, bounds
from schedtop.engine.contract.latencies.slo import Slo, parse_slo


@click.command("knobs")
@click.argument("addresses", nargs=-1, required=True, metavar="ADDRESS...")
@click.option(
    "--set", "assignments", multiple=True, metavar="NAME=VALUE", help="A limit to set; all or none are set."
)
@click.option(
    "--trial",
    "trial_s",
    type=click.FloatRange(min=0, min_open=True, max=MAX_TRIAL_S),
    metavar="SECONDS",
    help="Set them on trial, and wait: they revert after SECONDS, or at once if an SLO breaks.",
)
@click.option("--slo", metavar="SLO", help="ttft=1s,itl=50ms: p95 bounds that end a trial.")
@click.option("--keep", is_flag=True, help="Keep the values if nothing broke in the trial.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout instead of a table.")
@TOKEN_FILE
@click.pass_context
def command(
    ctx: click.Context,
    /,
    addresses: tuple[str, ...],
    assignments: tuple[str, ...],
    trial_s: float | None,
    slo: str | None,
    keep: bool,
    as_json: bool,
    token_file: str | None,
) -> None:
    """List the live limits of the engines at ADDRESS (unix:PATH or tcp:127.0.0.1:PORT), after setting some with --set.

    Several addresses, or a pattern of socket paths, are set together: if one refuses, none is changed.
    Exit code 1: a trial broke an SLO. Exit code 2: no such engine, or it refuses; then nothing was set.
    """
    changes = parse_changes(assignments)
    slo_s = _bounds_of(slo)
    if trial_s is not None and not changes:
        raise CommandError("--trial needs a limit to try: name it with --set")
    if trial_s is None and (slo is not None or keep):
        raise CommandError(f"{'--keep' if keep else '--slo'} is about a trial: add --trial SECONDS")
    found = _engines_at(addresses)
    warnings: list[str] = []
    versions: list[int] = []
    held = True
    if changes:
        with ExitStack() as links:
            engines = open_engines(links, found, token_file, read_only=False)
            how = (
                {}
                if trial_s is None
                else {"trial_s": trial_s + (CONFIRM_WITHIN_S if keep else 0.0), "slo_s": slo_s}
            )
            warnings, refused = set_all(engines, changes, **how)
            if refused:
                raise CommandError(refused)
            for warning in warnings:
                say(warning)
            if trial_s is not None:
                ends, held = follow_trials(engines, trial_s, keep)
                for end in ends or ["nothing to try: these are the values in force"]:
                    say(end)
            versions = [engine.set(changes, None, dry_run=True).knobs_version for engine in engines]
    with ExitStack() as links:  # setting one limit may move others: the engine says which
        tables = []
        for engine, version in zip_longest(open_engines(links, found, token_file, read_only=True), versions):
            engine.catch_up(version or 0)
            tables.append((engine.address, _rows(engine)))
    _show(tables, warnings, as_json)
    ctx.exit(0 if held else FAILED)


def _bounds_of(slo: str | None) -> dict[str, float]:
    bounds = Slo() if slo is None else parse_slo(slo)
    if bounds.tpot_s is not None or bounds.e2e_s is not None:
        raise CommandError(f"--slo {slo}: a trial watches ttft and itl")
    return {name: value for name, value in (("ttft", bounds.ttft_s), ("itl", bounds.itl_s)) if value is not None}


def _engines_at(addresses: Sequence[str]) -> list[str]:
    found = expand(addresses)
    if not found:
        raise CommandError(f"no socket matches {' '.join(addresses)}")
    for address in found:
        if is_page(address):
            raise CommandError(f"{address} is a metrics page, which sets no limits: name the hook's socket")
    return found


def _rows(engine: RunningEngine) -> list[dict[str, Any]]:
    ceilings = engine.header.config
    return [_row(name, value, ceilings) for name, value in engine.knobs.items() if name in BY_NAME]


def _show(tables: list[tuple[str, list[dict[str, Any]]]], warnings: list[str], as_json: bool) -> None:
    if as_json and len(tables) == 1:
        show_json({"knobs": tables[0][1], "warnings": warnings})
    elif as_json:
        engines = [{"address": address, "knobs": rows} for address, rows in tables]
        show_json({"engines": engines, "warnings": warnings})
    elif len(tables) == 1:
        show(_table(tables[0][1]))
    else:
        show("\n\n".join(f"{address}\n{_table(rows)}" for address, rows in tables))


def _row(name: str, value: Any, ceilings: dict[str, Any]) -> dict[str, Any]:
    knob = BY_NAME[name]
    low, high, _ = bounds(knob, ceilings)
    return {"name": name, "value": value, "low": low, "high": high, "unit": knob.unit}


def _table(rows: list[dict[str, Any]]) -> str:
    cells = [
        ("knob", "value", "range", "unit"),
        *((r["name"], _text(r["value"]), _range(r), r["unit"]) for r in rows),
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(4)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _range(row: dict[str, Any]) -> str:
    if row["low"] is None and row["high"] is None:
        return "on, off"
    return f"{_text(row['low'])} to {_text(row['high'])}"
