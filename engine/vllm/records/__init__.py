"""The hook's notes become step records, on a separate thread."""
