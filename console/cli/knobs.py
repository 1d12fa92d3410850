"""`schedtop knobs`: the limits of a running engine, for scripts."""

from __future__ import annotations

import time
from typing import Any, TypeVar

import click
from schedtop.console.cli.engine_flags import TOKEN_FILE
from schedtop.console.cli.errors import CommandError, say
from schedtop.console.cli.output import show, show_json
from schedtop.engine.channel.client import ChannelClient
from schedtop.engine.channel.protocol import ChannelError
from schedtop.engine.contract.knobs import BY_NAME, bounds, check_value, parse_assignments
from schedtop.engine.contract.telemetry import Bye, Header, Outgoing, Reply, SetKnobs, Snapshot

ANSWER_WITHIN_S = 30.0
"""An engine that is still loading its model answers late."""

Kind = TypeVar("Kind", bound=Outgoing)


@click.command("knobs")
@click.argument("address")
@click.option(
    "--set", "assignments", multiple=True, metavar="NAME=VALUE", help="A limit to set; all or none are set."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout instead of a table.")
@TOKEN_FILE
def command(address: str, assignments: tuple[str, ...], as_json: bool, token_file: str | None) -> None:
    """List the live limits of the engine at ADDRESS (unix:PATH or tcp:127.0.0.1:PORT), after setting some with --set.

    Exit code 2: no such engine, or it refuses; then nothing was set.
    """
    changes = {name: check_value(name, _value(text)) for name, text in parse_assignments(assignments).items()}
    with ChannelClient.connect(address, token_file=token_file, read_only=not changes) as link:
        ceilings = _await(link, Header).config
        snapshot = _await(link, Snapshot)
        values, warnings = dict(snapshot.knobs), []
        if changes:
            link.send(SetKnobs(id=1, values=changes, expected_version=snapshot.knobs_version, by="schedtop knobs"))
            reply = _await(link, Reply)
            if not reply.ok:
                raise CommandError(reply.text)
            warnings = reply.warnings
    if changes:  # what was set may move other limits: the engine tells
        with ChannelClient.connect(address, token_file=token_file, read_only=True) as link:
            values = _await(link, Snapshot).knobs
    for warning in warnings:
        say(warning)
    rows = [_row(name, value, ceilings) for name, value in values.items() if name in BY_NAME]
    show_json({"knobs": rows, "warnings": warnings}) if as_json else show(_table(rows))


def _value(text: str) -> str | None:
    return None if text in ("", "none") else text


def _await(link: ChannelClient, kind: type[Kind]) -> Kind:
    """The next message of `kind`. Raises `ChannelError` with the engine's reason if it hangs up before."""
    until_s = time.monotonic() + ANSWER_WITHIN_S
    while (left_s := until_s - time.monotonic()) > 0:
        message = link.receive(left_s)
        if isinstance(message, kind):
            return message
        if isinstance(message, Bye):
            raise ChannelError(f"{link.address}: {message.reason}")
    raise ChannelError(f"no answer from {link.address} within {ANSWER_WITHIN_S:g} s")


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
