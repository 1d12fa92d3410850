"""Columns, rows and times of many steps in few bytes."""
