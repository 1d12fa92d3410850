"""What the worker's modules use of msgspec, for a machine that has only torch, Triton, transformers and NumPy.

The benchmark sends nothing anywhere: plain classes with the same fields do.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
import types
from copy import copy
from functools import partial
from typing import Any


class _Fields(type):
    """Makes a dataclass of a class whose fields are annotated as a struct's; a default is copied for each object."""

    def __new__(meta, name: str, bases: tuple[type, ...], space: dict[str, Any], **options: Any) -> Any:
        for field in space.get("__annotations__", {}):
            if isinstance(space.get(field), list | dict | set):
                space[field] = dataclasses.field(default_factory=partial(copy, space[field]))
        made = super().__new__(meta, name, bases, space)
        eq = options.get("eq", True)
        made = dataclasses.dataclass(eq=eq, unsafe_hash=eq, kw_only=options.get("kw_only", False))(made)
        made.__struct_fields__ = tuple(field.name for field in dataclasses.fields(made))
        return made

    def __init__(cls, name: str, bases: tuple[type, ...], space: dict[str, Any], **options: Any) -> None:
        super().__init__(name, bases, space)


class Struct(metaclass=_Fields):
    """Stands in for `msgspec.Struct`; nothing is frozen and nothing is encoded."""


def stand_in_for_msgspec() -> None:
    """Does nothing where msgspec is installed."""
    if "msgspec" in sys.modules or importlib.util.find_spec("msgspec") is not None:
        return
    module, structs = types.ModuleType("msgspec"), types.ModuleType("msgspec.structs")
    vars(structs).update(replace=dataclasses.replace)
    vars(module).update(Struct=Struct, field=dataclasses.field, structs=structs)
    sys.modules.update({"msgspec": module, "msgspec.structs": structs})
