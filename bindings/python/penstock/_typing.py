"""Names for the annotations of the compiled half."""

from __future__ import annotations

from typing import Any, TypeVar

#: A numpy array or a torch tensor.
Array = Any

#: The same, where a result comes in the library of an argument.
ArrayT = TypeVar("ArrayT")
