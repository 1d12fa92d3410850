"""Four studies: what a mechanism of the engine is worth, on requests that suit it, do not suit it, or stress it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from schedtop.engine.contract.config import ConfigError, EngineConfig, WorkloadSpec
from schedtop.engine.contract.latencies.slo import parse_slo
from schedtop.engine.contract.nearest_name import did_you_mean
from schedtop.engine.decide_again.scenario import Scenario
from schedtop.engine.whatif.compare import Comparison, compare

SLO = "ttft=1s,itl=50ms"


@dataclass(frozen=True, slots=True)
class StudyQuestion:
    """One comparison of a study: what is asked, from which settings, and what changes."""

    text: str
    changes: Mapping[str, Any]
    scheduler: Mapping[str, Any]
    device: str = EngineConfig().device
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Study:
    """A workload at a rate, and the questions asked of it."""

    name: str
    title: str
    workload: WorkloadSpec
    questions: tuple[StudyQuestion, ...]


_CACHE = (
    StudyQuestion(
        "What does the prefix cache do?", {"enable_prefix_caching": True}, {"enable_prefix_caching": False}
    ),
    StudyQuestion("What does a smaller step do, with the cache on?", {"max_num_batched_tokens": 512}, {}),
)

_HOST, _SWAP = {"kv_host_memory_bytes": 64 << 30}, {"preemption_mode": "swap"}

STUDIES = {
    study.name: study
    for study in (
        Study(
            "shared-prefix",
            "Shared long prefix: a mechanism that removes work",
            WorkloadSpec(source="shared-prefix", rate=8.0, limit=600),
            _CACHE,
        ),
        Study(
            "unrelated",
            "Unrelated prompts: mechanisms that only rearrange work",
            WorkloadSpec(source="unrelated", rate=4.0, limit=600),
            _CACHE,
        ),
        Study(
            "pressure",
            "A pool under pressure: capacity turned into recomputation",
            WorkloadSpec(source="pressure", rate=1.6, limit=300),
            (
                StudyQuestion("What does half the pool do?", {"num_blocks": 7500}, {"num_blocks": 15000}),
                StudyQuestion(
                    "What does a watermark do in the small pool?", {"watermark": 0.1}, {"num_blocks": 7500}
                ),
                StudyQuestion(
                    "What does a cap on running requests do in the small pool?",
                    {"max_num_seqs": 24},
                    {"num_blocks": 7500},
                ),
            ),
        ),
        Study(
            "swap",
            "Preemption by swap or by recompute: a link against arithmetic",
            WorkloadSpec(source="pressure", rate=3.0, limit=60),
            (
                StudyQuestion("What does swapping do on an H100?", _SWAP, {"num_blocks": 4000, **_HOST}),
                StudyQuestion(
                    "And where arithmetic is a tenth, the link half as fast?",
                    _SWAP,
                    {"num_blocks": 900, **_HOST},
                    "sim:llama-3.1-8b@l4",
                    0.3,
                ),
                StudyQuestion(
                    "And for a model that computes a token faster than the link moves its state?",
                    _SWAP,
                    {"num_blocks": 300, **_HOST},
                    "sim:smollm2-135m@h100",
                    0.3,
                ),
            ),
        ),
    )
}


def run_study(name: str) -> list[tuple[StudyQuestion, Comparison]]:
    """Every question of a study with its answer. Raises `ConfigError` for an unknown name."""
    study = STUDIES.get(name)
    if study is None:
        hint = did_you_mean(name, STUDIES)
        raise ConfigError(f"no study is called {name!r}: {hint}the studies are {', '.join(STUDIES)}")
    answers = []
    for question in study.questions:
        workload = msgspec.structs.replace(study.workload, scale=question.scale)
        config = EngineConfig(device=question.device, workload=workload, scheduler=dict(question.scheduler))
        answers.append((question, compare(Scenario(config), question.changes, parse_slo(SLO))))
    return answers
