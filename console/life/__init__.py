"""A request's life: its steps, its phases, its slow gaps and their causes."""
