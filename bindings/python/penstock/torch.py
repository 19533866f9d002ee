"""Penstock inside a torch program: custom operators, modules, and a communicator.

Imported only on request; needs torch 2.4 or newer. The operators are opaque to torch.compile, which
neither breaks its graph at them nor moves a layer before its prefetch, and they may be captured in
a CUDA graph. All of this is for inference: no operator has a gradient.

A module keeps its object of the compiled package in ``.object``; whatever is not an operator
(status, resident bytes, a ticket's rows) is asked there.

    layer = penstock.torch.EngramLayer.open(model_dir, 1)
    ticket = layer.prefetch(row_ids)        # at step entry
    ...                                     # the decoder layers before it
    hidden = layer(hidden, ticket)
"""

from __future__ import annotations

import collections
import itertools
import os
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.distributed as dist

import penstock
from penstock._errors import Error, InvalidArgument

__all__ = [
    "EngramLayer",
    "GateLinear",
    "NgramHasher",
    "Table",
    "Ticket",
    "communicator",
    "dequantize",
    "engram_gate",
]

_T = TypeVar("_T")

# ---- Objects that operators name by number ---------------------------------------------------

_objects: dict[int, Any] = {}
_numbers = itertools.count(1)


class _Handle:
    """Keeps an object where operators find it, for as long as somebody holds the handle."""

    def __init__(self, thing: object) -> None:
        self.number = next(_numbers)
        _objects[self.number] = thing
        weakref.finalize(self, _objects.pop, self.number, None)

    def __deepcopy__(self, memo: object) -> _Handle:
        return self

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError("penstock.torch: a module belongs to its process and cannot be pickled")


def _object(kind: type[_T], number: int) -> _T:
    thing = _objects.get(number)
    if not isinstance(thing, kind):
        raise InvalidArgument(f"penstock.torch: found no {kind.__name__} of number {number}, needs "
                              "the number of a module that lives")
    return thing


class _LayerState:
    """A layer and its tickets that have been started and not used, oldest first."""

    def __init__(self, layer: penstock.EngramLayer) -> None:
        self.layer = layer
        self.tickets: collections.deque[penstock.Ticket] = collections.deque()


# ---- Operators -------------------------------------------------------------------------------

_library = torch.library.Library("penstock", "DEF")


def _operator(schema: str, fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Defines an operator of one text for CPU and CUDA, and what it looks like to a tracer."""

    def define(function: Callable[..., Any]) -> Any:
        name = schema.split("(", 1)[0]
        _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,
                                      torch.Tag.needs_fixed_stride_order))
        for key in ("CPU", "CUDA"):
            _library.impl(name, function, key)
        torch.library.register_fake(f"penstock::{name}", fake, lib=_library)
        return getattr(torch.ops.penstock, name).default

    return define


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def _fake_row_ids(token_ids: torch.Tensor, query_start: torch.Tensor, positions: torch.Tensor,
                  lookback: torch.Tensor, hasher: int) -> torch.Tensor:
    layout = _object(penstock.NgramHasher, hasher).layout
    shape = (token_ids.shape[0], layout.num_layers, layout.num_columns)
    return token_ids.new_empty(shape, dtype=torch.int32)


@_operator("row_ids(Tensor token_ids, Tensor query_start, Tensor positions, Tensor lookback, "
           "int hasher) -> Tensor", _fake_row_ids)
def _row_ids(token_ids: torch.Tensor, query_start: torch.Tensor, positions: torch.Tensor,
             lookback: torch.Tensor, hasher: int) -> torch.Tensor:
    return _object(penstock.NgramHasher, hasher)(token_ids, query_start, positions, lookback)


def _fake_lookup(row_ids: torch.Tensor, table: int) -> torch.Tensor:
    found = _object(penstock.Table, table)
    shape = (row_ids.shape[0], found.local_columns, found.head_dim)
    return row_ids.new_empty(shape, dtype=torch.bfloat16)


@_operator("lookup(Tensor row_ids, int table) -> Tensor", _fake_lookup)
def _lookup(row_ids: torch.Tensor, table: int) -> torch.Tensor:
    return _object(penstock.Table, table).lookup(row_ids)


def _fake_prefetch(row_ids: torch.Tensor, layer: int) -> torch.Tensor:
    return row_ids.new_empty((1,), dtype=torch.int32)


# The answer holds no number that anybody reads; it makes the layer depend on its prefetch.
@_operator("engram_prefetch(Tensor row_ids, int layer) -> Tensor", _fake_prefetch)
def _prefetch(row_ids: torch.Tensor, layer: int) -> torch.Tensor:
    state = _object(_LayerState, layer)
    state.tickets.append(state.layer.prefetch(row_ids))
    return torch.empty((1,), dtype=torch.int32, device=row_ids.device)


def _fake_inject(hidden: torch.Tensor, order: torch.Tensor, row_ids: torch.Tensor,
                 mask: torch.Tensor | None, layer: int) -> torch.Tensor:
    return _like(hidden)


# row_ids is not read here: a compiler that reuses buffers must not reuse it during the read.
@_operator("engram_inject(Tensor hidden, Tensor order, Tensor row_ids, Tensor? mask, int layer) "
           "-> Tensor", _fake_inject)
def _inject(hidden: torch.Tensor, order: torch.Tensor, row_ids: torch.Tensor,
            mask: torch.Tensor | None, layer: int) -> torch.Tensor:
    state = _object(_LayerState, layer)
    if not state.tickets:
        raise InvalidArgument("EngramLayer: found no ticket under way, needs prefetch() before it")
    oldest = state.tickets.popleft()
    return state.layer(hidden, oldest, mask)


def _fake_gate_linear(x: torch.Tensor, attn_out: torch.Tensor, token_counts: list[int] | None,
                      gate: int) -> torch.Tensor:
    return _like(attn_out)


@_operator("gate_linear(Tensor x, Tensor attn_out, int[]? token_counts, int gate) -> Tensor",
           _fake_gate_linear)
def _gate_linear(x: torch.Tensor, attn_out: torch.Tensor, token_counts: list[int] | None,
                 gate: int) -> torch.Tensor:
    return _object(penstock.GateLinear, gate)(x, attn_out, token_counts)


def _fake_engram_gate(hidden: torch.Tensor, kv: torch.Tensor, q_weight: torch.Tensor,
                      k_weight: torch.Tensor, eps: float,
                      mask: torch.Tensor | None) -> torch.Tensor:
    return _like(hidden)


@_operator("engram_gate(Tensor hidden, Tensor kv, Tensor q_weight, Tensor k_weight, float eps, "
           "Tensor? mask) -> Tensor", _fake_engram_gate)
def _engram_gate(hidden: torch.Tensor, kv: torch.Tensor, q_weight: torch.Tensor,
                 k_weight: torch.Tensor, eps: float, mask: torch.Tensor | None) -> torch.Tensor:
    return penstock.engram_gate(hidden, kv, q_weight, k_weight, eps, mask)


def _fake_dequantize(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return torch.empty(values.shape, dtype=torch.bfloat16, device=values.device)


@_operator("dequantize(Tensor values, Tensor scales) -> Tensor", _fake_dequantize)
def _dequantize(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return penstock.dequantize(values, scales)


def engram_gate(hidden: torch.Tensor, kv: torch.Tensor, q_weight: torch.Tensor,
                k_weight: torch.Tensor, eps: float,
                mask: torch.Tensor | None = None) -> torch.Tensor:
    """As penstock.engram_gate(), as an operator."""
    return cast(torch.Tensor, _engram_gate(hidden, kv, q_weight, k_weight, eps, mask))


def dequantize(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """As penstock.dequantize(), as an operator. Works on the host: not for CUDA graphs."""
    return cast(torch.Tensor, _dequantize(values, scales))


# ---- Modules ---------------------------------------------------------------------------------


class _Module(torch.nn.Module):
    """What the modules share: a number that operators know, and nothing that state_dict() sees."""

    def __init__(self, thing: object) -> None:
        super().__init__()
        self._handle = _Handle(thing)
        self._number = self._handle.number


class NgramHasher(_Module):
    """penstock.NgramHasher as a module: tokens of a step to row ids of every Engram layer."""

    def __init__(self, hasher: penstock.NgramHasher) -> None:
        super().__init__(hasher)
        self.object = hasher

    def forward(self, token_ids: torch.Tensor, query_start: torch.Tensor, positions: torch.Tensor,
                lookback: torch.Tensor) -> torch.Tensor:
        """Row ids, int32 [T, L, C]; arguments as for penstock.NgramHasher.

        In a CUDA graph the arguments must have the widths named there: int32, positions int64.
        """
        return cast(torch.Tensor, _row_ids(token_ids, query_start, positions, lookback,
                                           self._number))


class Table(_Module):
    """penstock.Table as a module: row ids to rows."""

    def __init__(self, table: penstock.Table) -> None:
        super().__init__(table)
        self.object = table

    @classmethod
    def open(cls, model_dir: str | os.PathLike[str], layer: int, **options: Any) -> Table:
        """As penstock.Table.open(), with the same options."""
        return cls(penstock.Table.open(model_dir, layer, **options))

    def forward(self, row_ids: torch.Tensor) -> torch.Tensor:
        """Rows, bf16 [T, local_columns, D], of int32 [T, C] or [T, L, C]."""
        return cast(torch.Tensor, _lookup(row_ids, self._number))


class Ticket(NamedTuple):
    """A read under way, made by EngramLayer.prefetch()."""

    order: torch.Tensor  #: Makes the layer's call depend on its prefetch; holds nothing.
    row_ids: torch.Tensor  #: What is being read.


class EngramLayer(_Module):
    """penstock.EngramLayer as a module: rows, projection, gate, injection of one layer.

    Tickets are used in the order in which they were made. Prefetch and use lie in the same CUDA
    graph, or both outside of one.
    """

    def __init__(self, layer: penstock.EngramLayer) -> None:
        state = _LayerState(layer)
        super().__init__(state)
        self._state = state
        self.object = layer

    @classmethod
    def open(cls, model_dir: str | os.PathLike[str], layer: int, **options: Any) -> EngramLayer:
        """As penstock.EngramLayer.open(), with the same options."""
        return cls(penstock.EngramLayer.open(model_dir, layer, **options))

    def prefetch(self, row_ids: torch.Tensor) -> Ticket:
        """Starts reading the rows of a step, beside whatever else is going on.

        Args:
            row_ids: int32 [T, C] or [T, L, C] on the layer's device.

        Returns:
            The ticket that the layer's call takes.
        """
        return Ticket(_prefetch(row_ids, self._number), row_ids)

    def forward(self, hidden: torch.Tensor, ticket: Ticket,
                mask: torch.Tensor | None = None) -> torch.Tensor:
        """The new hidden, bf16 [T, hc, dim]; mask bool [T], False keeps a token's hidden."""
        order, row_ids = ticket
        return cast(torch.Tensor, _inject(hidden, order, row_ids, mask, self._number))

    def drop_tickets(self) -> None:
        """Joins the reads that no call will use, for example of a step that was given up."""
        self._state.tickets.clear()


class GateLinear(_Module):
    """penstock.GateLinear as a module: attn_out * sigmoid(x weight^T) over a group of ranks."""

    def __init__(self, gate: penstock.GateLinear) -> None:
        super().__init__(gate)
        self.object = gate

    @classmethod
    def open(cls, model_dir: str | os.PathLike[str], layer: int, **options: Any) -> GateLinear:
        """As penstock.GateLinear.open(), with the same options."""
        return cls(penstock.GateLinear.open(model_dir, layer, **options))

    def forward(self, x: torch.Tensor, attn_out: torch.Tensor,
                token_counts: Sequence[int] | None = None) -> torch.Tensor:
        """The gated attention output; arguments as for penstock.GateLinear.

        A CUDA graph, and ranks that share the weight, need token_counts: T of every rank.
        """
        counts = None if token_counts is None else list(token_counts)
        return cast(torch.Tensor, _gate_linear(x, attn_out, counts, self._number))


# ---- Communicator ----------------------------------------------------------------------------


class _HostGroup:
    """Callbacks of penstock.Communicator over a process group that carries CPU tensors."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.ranks: list[int] = dist.get_process_group_ranks(group)
        self.size = len(self.ranks)

    def all_gather_bytes(self, mine: bytes) -> list[bytes]:
        sizes = [torch.empty(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(mine)]), group=self.group)
        counts = [int(size) for size in sizes]
        # One length for all: gloo gathers equal tensors only.
        padded = torch.zeros(max(1, *counts), dtype=torch.uint8)
        if mine:
            padded[:len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        blocks = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(blocks, padded, group=self.group)
        return [block[:count].numpy().tobytes() for block, count in zip(blocks, counts)]

    def barrier(self) -> None:
        dist.barrier(group=self.group)

    def split(self, groups: list[list[int]], mine: int) -> dict[str, Any] | None:
        if mine < 0:
            return None
        ranks = [self.ranks[rank] for rank in groups[mine]]
        return _HostGroup(_host_group(ranks, None)).callbacks()

    def callbacks(self) -> dict[str, Any]:
        return {"all_gather_bytes": self.all_gather_bytes, "barrier": self.barrier,
                "split": self.split}


def _host_group(ranks: list[int], timeout: timedelta | None) -> Any:
    return dist.new_group(ranks, timeout=timeout, backend="gloo", use_local_synchronization=True)


def communicator(group: Any = None, *,
                 timeout: timedelta | None = None) -> penstock.Communicator:
    """A communicator over the ranks of a torch.distributed process group; no MPI is needed.

    Collective over the group. The messages are small (ids of memory, sizes, errors) and go through
    gloo on the host: a group of another backend gets a gloo group beside it. A rank that dies is
    noticed by gloo; one that is silent, at the group's timeout.

    Args:
        group: a process group; None is all ranks.
        timeout: of the gloo group that is made; None takes torch's own.

    Raises:
        Error: NotFound before torch.distributed.init_process_group(); Unsupported without gloo.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise Error("communicator: found no process group, needs "
                    "torch.distributed.init_process_group() before it", "NotFound")
    if not dist.is_gloo_available():
        raise Error("communicator: this torch has no gloo, needs it for messages on the host",
                    "Unsupported")
    given = dist.group.WORLD if group is None else group
    host = given if dist.get_backend(given) == "gloo" and timeout is None else _host_group(
        dist.get_process_group_ranks(given), timeout)
    functions = _HostGroup(host)
    return penstock.Communicator.callbacks(dist.get_rank(host), functions.size,
                                           **functions.callbacks())
