"""What the rooms of a step hand each other: requests, plans, results."""
