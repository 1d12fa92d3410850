"""Themes as TOML files, and their loader."""
