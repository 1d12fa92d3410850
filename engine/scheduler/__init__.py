"""The scheduler: one file per question it answers."""
