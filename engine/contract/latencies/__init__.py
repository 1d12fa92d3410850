"""Latencies of requests served and still waiting: one cohort, its percentiles, its SLOs."""
