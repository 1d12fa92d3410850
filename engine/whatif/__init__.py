"""The same requests under other settings: comparisons, sweeps, forecasts. Everything runs on simulated time."""
