"""Feeds GPUs the weights that are too big for each of them to hold.

Arrays come in and go out as numpy arrays or torch tensors, without copies where their layout
allows it. bf16 is uint16 bits (or ml_dtypes.bfloat16 on the way in) for numpy and bfloat16 for
torch. Results come in the library and on the device of the first array argument.
"""

from penstock._errors import Error, InvalidArgument
from penstock._penstock import (
    Communicator,
    EngramLayer,
    GateLinear,
    HashLayout,
    LaunchResult,
    NgramHasher,
    ProcessEnd,
    Table,
    Ticket,
    TokenMap,
    build_description,
    check,
    column_shards,
    dequantize,
    edp_groups,
    engram_gate,
    launch_processes,
    version,
)

__version__ = version()

__all__ = [
    "Communicator",
    "EngramLayer",
    "Error",
    "GateLinear",
    "HashLayout",
    "InvalidArgument",
    "LaunchResult",
    "NgramHasher",
    "ProcessEnd",
    "Table",
    "Ticket",
    "TokenMap",
    "__version__",
    "build_description",
    "check",
    "column_shards",
    "dequantize",
    "edp_groups",
    "engram_gate",
    "launch_processes",
]
