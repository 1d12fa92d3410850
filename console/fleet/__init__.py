"""Several engines on one screen: a row each, sums below, and the way into one."""
