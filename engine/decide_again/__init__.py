"""Recorded decisions made again: verified, compared, and continued differently from any step."""
