"""Screens compose panels."""
