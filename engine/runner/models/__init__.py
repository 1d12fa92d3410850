"""Decoders in torch and C: the route for the Llama family and the general one, and their attention."""
