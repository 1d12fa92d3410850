"""What the hook in vLLM costs its clients: the same streams from two servers, one of them hooked with a console joined.

    python benchmarks/attach_streams.py MODEL [--clients 32] [--pairs 6] [--tokens 64]

Run it where vLLM is installed. Both servers stay up and take turns; which goes first is random in every
pair. Printed: output tokens per second and the gap between tokens (p50) of each side, the paired differences with
their quartiles, and whether all texts are identical. Exit code 1: they are not, though those of the server
without the hook are among themselves.

In bfloat16 a text depends on who shares its batches. Hence float32 and no prefix cache.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))


class Round(NamedTuple):
    """One load: output tokens per second, the median gap between tokens in milliseconds, and the texts' digests."""

    rate: float
    gap_ms: float
    texts: tuple[str, ...]


def load(url: str, clients: int, tokens: int) -> Round:
    from tests.vllm.clients import ask

    began = time.monotonic()
    answers = ask(url, "stream", clients, tokens)
    elapsed_s = time.monotonic() - began
    gaps = [later - earlier for a in answers for earlier, later in zip(a.pieces, a.pieces[1:], strict=False)]
    rate = sum(answer.output_tokens for answer in answers) / elapsed_s
    return Round(rate, statistics.median(gaps) * 1000, tuple(answer.digest for answer in answers))


def report(pairs: list[tuple[Round, Round]]) -> bool:
    """Print what was measured; whether the hook changed no text."""
    figures: list[tuple[str, Callable[[Round], float]]] = [
        ("output tokens/s", lambda each: each.rate),
        ("gap p50, ms", lambda each: each.gap_ms),
    ]
    for name, figure in figures:
        off, on = ([figure(pair[side]) for pair in pairs] for side in (0, 1))
        shares = [after / before - 1 for before, after in zip(off, on, strict=True)]
        low, middle, high = statistics.quantiles(shares, n=4)
        print(
            f"{name:16s} off {statistics.median(off):8.2f}, on {statistics.median(on):8.2f};"
            f" paired {middle:+.1%} ({low:+.1%} to {high:+.1%}) over {len(pairs)} pairs"
        )
    off_texts, on_texts = ({pair[side].texts for pair in pairs} for side in (0, 1))
    same, repeats = len(off_texts | on_texts) == 1, len(off_texts) == 1
    found = "identical" if same else "DIFFERENT" if repeats else "differ without the hook, too"
    print(f"texts {found}: {2 * len(pairs)} loads of {len(pairs[0][0].texts)} streams, half of them on each side")
    return same or not repeats


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a model folder")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    flags = parser.parse_args()
    os.environ["SCHEDTOP_TEST_MODEL"] = flags.model
    from tests.vllm.clients import Console
    from tests.vllm.conftest import Server

    with tempfile.TemporaryDirectory() as folder, ExitStack() as ends:
        servers = []
        for hooked in (False, True):
            place = Path(folder, "on" if hooked else "off")
            place.mkdir()
            servers.append(
                Server(place, "--max-num-seqs", str(flags.clients), "--no-enable-prefix-caching", hooked=hooked)
            )
            ends.callback(servers[-1].close)
            servers[-1].await_ready()  # one after the other
        ends.callback(Console(servers[1].address).close)
        pairs = []
        for place in range(flags.pairs + 1):
            order = random.Random(place).sample((0, 1), 2)
            rounds = {side: load(servers[side].url, flags.clients, flags.tokens) for side in order}
            if place:  # the first one warms caches up
                pairs.append((rounds[0], rounds[1]))
        return 0 if report(pairs) else 1


if __name__ == "__main__":
    sys.exit(main())
