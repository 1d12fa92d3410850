"""How panels draw: lines, glyphs, stacked columns, text, styles by role."""
