"""life."""
