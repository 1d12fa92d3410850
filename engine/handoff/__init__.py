"""What the parts of a step exchange: requests, plans, results."""
