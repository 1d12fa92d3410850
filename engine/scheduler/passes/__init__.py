"""The passes of a step: running requests first, then waiting ones; preemption, and the resulting plan."""
