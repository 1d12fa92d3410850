"""The past as a recording has it."""
