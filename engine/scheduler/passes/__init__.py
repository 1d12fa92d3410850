"""The passes of a step: running requests first, then those who wait; preemption, and the plan that comes of it."""
