"""The worker that runs real models."""
