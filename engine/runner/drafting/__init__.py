"""Draft tokens: by prompt look-up, or by a small model."""
