"""Latencies of those served and those still waiting: one cohort, its percentiles, its SLOs."""
