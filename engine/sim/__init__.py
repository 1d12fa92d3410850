"""Simulated devices: step times from a roofline."""
