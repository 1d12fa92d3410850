"""The stages of a simulated device: each holds one batch, so a batch need not wait until the previous one is
through."""

from __future__ import annotations


class Stages:
    """Equal shares of a device that a batch passes one after the other. `free_s`: when each is through."""

    def __init__(self, count: int) -> None:
        self.free_s = (0.0,) * count

    def run(self, ready_s: float, elapsed_s: float) -> tuple[float, float]:
        """When a batch that is ready at `ready_s` and takes `elapsed_s` in total starts and ends."""
        share_s, time_s, free_s = elapsed_s / len(self.free_s), ready_s, []
        taken_up_s = max(ready_s, self.free_s[0])
        for stage_s in self.free_s:
            time_s = max(time_s, stage_s) + share_s
            free_s.append(time_s)
        self.free_s = tuple(free_s)
        return taken_up_s, time_s
