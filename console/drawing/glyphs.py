"""Characters the panels draw with: Unicode, or plain ASCII where the terminal has no more."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set.

    `decode` … `unused` and `held` … `empty` are whole cells that distinguish the classes without colour. `eighths`
    are bottom-up partial cells (empty where the set has none), `spark` is low to high, `progress` is cached,
    computed, output, to come.
    """

    decode: str
    prefill: str
    draft: str
    unused: str
    held: str
    shared: str
    cached: str
    empty: str
    watermark: str
    eighths: str
    progress: str
    spark: str
    slo: str
    rule: str
    column: str
    left: str
    right: str
    cursor: str
    up: str
    down: str
    arrow: str
    dot: str
    track: str
    thumb: str
    short: str
    minus: str


UNICODE = Glyphs(
    decode="█",
    prefill="▒",
    draft="▚",
    unused="·",
    held="█",
    shared="▓",
    cached="░",
    empty="·",
    watermark="│",
    eighths=" ▁▂▃▄▅▆▇█",
    progress="┄─━·",
    spark="▁▂▃▄▅▆▇█",
    slo="╌",
    rule="─",
    column="│",
    left="▕",
    right="▏",
    cursor="▸",
    up="▲",
    down="▼",
    arrow="→",
    dot="·",
    track="│",
    thumb="┃",
    short="…",
    minus="−",
)

ASCII = Glyphs(
    decode="D",
    prefill="P",
    draft="S",
    unused=".",
    held="#",
    shared="&",
    cached="c",
    empty=".",
    watermark="|",
    eighths="",
    progress="-=#.",
    spark="_.-=#",
    slo="-",
    rule="-",
    column="|",
    left="[",
    right="]",
    cursor=">",
    up="^",
    down="v",
    arrow="->",
    dot=":",
    track="|",
    thumb="#",
    short="~",
    minus="-",
)


def to_ascii(text: str) -> str:
    """`text` with the signs our own wording uses spelt in ASCII; other characters become `?`."""
    plain = text.translate(_SPELT)
    return plain if plain.isascii() else plain.encode("ascii", "replace").decode()


_SPELT = str.maketrans(
    {"−": "-", "→": "->", "…": "~", "·": ":", "×": "x", "≥": ">=", "≤": "<=", "–": "-", "—": "-"}
)
