"""Better, worse, the same, or undecided: one figure of two runs of the same requests."""

from __future__ import annotations

from collections.abc import Mapping

from schedtop.engine.contract.latencies.cohort import SHARES, Bounded, Cohort
from schedtop.engine.whatif.compared_figures import ComparedFigure, Document, value_text

NOTABLE = 0.01
"""Differences below this share are neither better nor worse."""

CANNOT_TELL = "cannot tell"
_PER_REQUEST = ("ttft_s", "tpot_s", "e2e_s")
"""Latencies of which each request has one at most: who lacks it in one run is missing there."""

Cohorts = Mapping[str, Cohort]


def verdict(figure: ComparedFigure, documents: tuple[Document, Document], cohorts: tuple[Cohorts, Cohorts]) -> str:
    """`same` if both read alike, `better`, `worse`, `cannot tell` where bounds overlap; empty for neither."""
    old, new = (figure.of(document) for document in documents)
    bounds = _bounds(figure, cohorts)
    if bounds is not None and any(side.most > side.least for side in bounds):
        return _of_bounds(*bounds)
    if old is None or new is None:
        return ""
    if value_text(figure, old) == value_text(figure, new):
        return "same"
    gain = (new - old) * figure.better
    if not gain or abs(gain) < NOTABLE * abs(old):
        return ""
    return "better" if gain > 0 else "worse"


def _bounds(figure: ComparedFigure, cohorts: tuple[Cohorts, Cohorts]) -> tuple[Bounded, Bounded] | None:
    """A latency percentile that both runs know, over equally many members; None for other figures."""
    name, share = figure.path[0], SHARES.get(figure.path[-1])
    if share is None or name not in cohorts[0]:
        return None
    both = [side[name] for side in cohorts]
    if name in _PER_REQUEST:
        sizes = [side.n + side.num_open for side in both]
        both = [side.missing(max(sizes) - size) for side, size in zip(both, sizes, strict=True)]
    old, new = (side.quantile(share) for side in both)
    return None if old is None or new is None else (old, new)


def _of_bounds(old: Bounded, new: Bounded) -> str:
    """Less is better."""
    if new.most < old.least * (1 - NOTABLE):
        return "better"
    if new.least > old.most * (1 + NOTABLE):
        return "worse"
    return CANNOT_TELL
