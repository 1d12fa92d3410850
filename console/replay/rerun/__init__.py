"""rerun."""
