"""Files that are read or written: which may be, and how they come to be whole or not at all."""
