"""One step of the engine: arrivals, plan, execution, settling, and its record."""
