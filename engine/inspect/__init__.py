"""Looking into recordings: sums, exports, checks, and what can be proved of their decisions."""
