"""Reading and writing files: named where that fails, and written whole or not at all."""
