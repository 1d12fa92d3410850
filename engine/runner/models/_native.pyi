from collections.abc import Callable

def load(dtype: str, /) -> list[tuple[str, int, dict[str, Callable[..., None]]]]:
    """(instructions, panel width, routines by name) that this processor runs, best first; none for other dtypes.

    Pointers are whole numbers, 0 for none; every routine takes the number of threads last. See `c/`.
    """
