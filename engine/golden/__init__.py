"""Golden cases: recorded decisions of a scheduler, replayed step by step."""
