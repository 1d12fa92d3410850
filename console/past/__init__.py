"""What the screens look back on: steps, events, latencies, rates; live from an engine or read from a recording."""
