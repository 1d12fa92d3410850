"""What the terminal takes: driver, clipboard, exported files."""
