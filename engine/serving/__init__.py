"""An engine that serves: its process, its loop, trials of knob changes, and where records go."""
