"""Notes of the hook become step records, on a thread of their own."""
