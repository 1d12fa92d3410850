"""The best runs of a sweep: the Pareto set, and the winner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from schedtop.engine.whatif.compared_figures import BY_NAME, CUT_OFF, GOODPUT, REFUSED, ComparedFigure, Document

LATENCIES = (BY_NAME["ttft_p95_s"], BY_NAME["itl_p95_s"])
WITHOUT_SLO = BY_NAME["e2e_p95_s"]
"""The objective without an SLO: the E2E of all but the slowest requests."""

Documents = Sequence[Document | None]


def objectives(with_slo: bool) -> tuple[ComparedFigure, ...]:
    """What runs are judged by; the first decides the winner, the others break its ties.

    A refused request has no latency and is not part of the goodput, an answer that is cut off ends early: runs with
    more of them would look better for it.
    """
    return (REFUSED, CUT_OFF, decisive(with_slo), *LATENCIES)


def decisive(with_slo: bool) -> ComparedFigure:
    """The objective among runs that serve every request."""
    return GOODPUT if with_slo else WITHOUT_SLO


def pareto_set(documents: Documents, with_slo: bool) -> list[int]:
    """Indices of the runs that no other run dominates (as good in every objective, better in one). None never
    counts."""
    scores = [None if document is None else _scores(document, with_slo) for document in documents]
    places = []
    for place, score in enumerate(scores):
        if score is None:
            continue
        rivals = (other for other in scores if other is not None)
        if not any(_beats(other, score) for other in rivals):
            places.append(place)
    return places


def ranked(documents: Documents, with_slo: bool) -> list[int]:
    """Indices of the runs, best first; ties keep their order."""
    known = [
        (place, _scores(document, with_slo)) for place, document in enumerate(documents) if document is not None
    ]
    return [place for place, score in sorted(known, key=lambda pair: pair[1], reverse=True)]


def _scores(document: Any, with_slo: bool) -> tuple[float, ...]:
    """Each objective, with its sign such that more is better; unknown is worst."""
    values = ((figure, figure.of(document)) for figure in objectives(with_slo))
    return tuple(float("-inf") if value is None else figure.better * value for figure, value in values)


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a >= b for a, b in zip(one, other, strict=True))
