"""The CPU benchmark's load and what is measured of it. Either engine's Python runs it: standard library only."""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

TEXT = """
a about after again all also an and any are as at back be because been before but by can come could
day do down even every find first for from get give go good great had hand have he help her here him
his house how if in into is it its just keep kind know land large last learn left life light like
line little live long look made make man many may me men might more most mother move much must my
name near need never new next night no not now number of off often old on one only or other our out
over own page part people place plant point read right river said same saw say school see sentence
set she should show small so some sound spell still story study such take tell than that the their
them then there these they thing think this thought three through time to together too tree turn two
under until up us use very walk want was water way we well went were what when where which while
white who why will with wood word work world would write year you young your
"""
WORDS = TEXT.split()

Tokens = tuple[str, int]
"""The id of a request and how many output tokens it has by now."""


def make_prompts(count: int, seed: int) -> list[str]:
    """Prompts of 20 to 300 words; their lengths are the same for every seed, their words are not."""
    lengths, words = random.Random(0), random.Random(seed)
    return [" ".join(words.choices(WORDS, k=lengths.randint(20, 300))) for _ in range(count)]


class Meter:
    """A closed loop: `concurrency` requests at a time, the next one when one ends."""

    def __init__(
        self, submit: Callable[[str, str, int], None], step: Callable[[], Iterable[Tokens]], concurrency: int
    ) -> None:
        self._submit, self._step, self._concurrency = submit, step, concurrency

    def run(self, prompts: list[str], max_tokens: int, tag: str) -> dict[str, float]:
        """One round: output tokens/s, medians of TTFT and of the gaps between tokens, their 99th percentile."""
        waiting = list(enumerate(prompts))
        sent: dict[str, float] = {}
        seen: dict[str, tuple[int, float]] = {}
        ttft_s, itl_s, done = [], [], 0
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        while done < len(prompts):
            while waiting and len(sent) - done < self._concurrency:
                index, prompt = waiting.pop(0)
                name = f"{tag}-{index}"
                sent[name] = time.perf_counter()
                self._submit(name, prompt, max_tokens)
            for name, tokens in self._step():
                now_s = time.perf_counter()
                before, last_s = seen.get(name, (0, sent[name]))
                if tokens > before:
                    (itl_s if before else ttft_s).append(now_s - last_s)
                    seen[name] = (tokens, now_s)
                    done += tokens >= max_tokens
        elapsed_s = time.perf_counter() - began_s
        return {
            "tokens_per_s": len(prompts) * max_tokens / elapsed_s,
            "tokens_per_cpu_s": len(prompts) * max_tokens / (time.process_time() - began_cpu_s),
            "ttft_ms": 1e3 * percentile(ttft_s, 0.5),
            "itl_ms": 1e3 * percentile(itl_s, 0.5),
            "itl_p99_ms": 1e3 * percentile(itl_s, 0.99),
        }


def percentile(values: list[float], share: float) -> float:
    """With linear interpolation."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def obey(meter: Meter, load_s: float, out: Any, device: str = "") -> None:
    """Tell that the engine is loaded and what runs it; then a round for every line on stdin: count, tokens, seed."""
    meter.run(make_prompts(8, 99), 8, "warm")
    print(json.dumps({"load_s": load_s, "device": device}), file=out, flush=True)
    for line in sys.stdin:
        count, max_tokens, seed = map(int, line.split())
        figures = meter.run(make_prompts(count, seed), max_tokens, f"round{seed}")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(json.dumps({**figures, "peak_mb": peak / 1024}), file=out, flush=True)
