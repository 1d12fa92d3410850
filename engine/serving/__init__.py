"""A serving engine: its process, its loop, trials of knob changes, and the sinks for records."""
