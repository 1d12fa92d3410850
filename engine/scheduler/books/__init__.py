"""The scheduler's books: who waits, who runs, what each holds, and how an entry ends."""
