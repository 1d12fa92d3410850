"""A recording run again under other limits, drawn over the recorded run."""
