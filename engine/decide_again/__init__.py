"""Replays recorded decisions: verifies them, compares them, and continues differently from any step."""
