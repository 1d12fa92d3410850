"""Failures in a few words."""

from __future__ import annotations


def first_line(error: Exception) -> str:
    """What went wrong, on part of a line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:160]}" if text else type(error).__name__
