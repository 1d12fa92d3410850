"""Records out, commands in: the link between an engine and its consoles."""
