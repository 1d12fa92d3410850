"""The console over a recording: its position, its playback and its jumps."""
