"""Input and output files: which may be read, and how output appears whole or not at all."""
