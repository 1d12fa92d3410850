"""Changing limits: staged values, forecasts, presets, trials, and comparisons of before and after."""
