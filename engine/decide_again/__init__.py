"""decide_again."""
