"""The console over a recording: where it stands, how it plays, and what it jumps to."""
