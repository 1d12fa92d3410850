"""The scheduler's books: waiting and running requests, what each holds, and how it ends."""
