"""Communicators: groups of threads, and of a framework's callbacks."""

from __future__ import annotations

import concurrent.futures
import queue
import sys
import threading
from collections.abc import Callable

import penstock
import pytest


def on_every_rank(group: list[penstock.Communicator],
                  body: Callable[[penstock.Communicator], object]) -> list[object]:
    with concurrent.futures.ThreadPoolExecutor(len(group)) as pool:
        return list(pool.map(body, group))


class HostGroup:
    """All-gather between threads, as a framework's process group would give it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size)
        self.slots: list[bytes] = [b""] * size

    def all_gather(self, rank: int, mine: bytes) -> list[bytes]:
        self.slots[rank] = mine
        self.barrier.wait()
        answer = list(self.slots)
        self.barrier.wait()
        return answer

    def communicators(self) -> list[penstock.Communicator]:
        def gather_of(rank: int) -> Callable[[bytes], list[bytes]]:
            return lambda mine: self.all_gather(rank, mine)

        return [penstock.Communicator.callbacks(rank, self.size, gather_of(rank),
                                                lambda: self.barrier.wait() and None)
                for rank in range(self.size)]


@pytest.fixture(params=["threads", "callbacks"])
def group(request: pytest.FixtureRequest) -> list[penstock.Communicator]:
    if request.param == "threads":
        return penstock.Communicator.threads(3)
    return HostGroup(3).communicators()


def test_ranks_know_their_place(group: list[penstock.Communicator]) -> None:
    assert [comm.rank for comm in group] == [0, 1, 2]
    assert {comm.size for comm in group} == {3}
    assert len({comm.engine for comm in group}) == 1


def test_bytes_of_unequal_length_reach_every_rank(group: list[penstock.Communicator]) -> None:
    want = [b"", b"x", b"xx"]
    got = on_every_rank(group, lambda comm: comm.all_gather_bytes(b"x" * comm.rank))
    assert got == [want] * 3


def test_a_barrier_lets_nobody_through_early(group: list[penstock.Communicator]) -> None:
    arrived: queue.SimpleQueue[int] = queue.SimpleQueue()

    def body(comm: penstock.Communicator) -> int:
        arrived.put(comm.rank)
        comm.barrier()
        return arrived.qsize()

    assert on_every_rank(group, body) == [3, 3, 3]


def test_split_makes_smaller_groups() -> None:
    group = penstock.Communicator.threads(4)

    def body(comm: penstock.Communicator) -> tuple[int, int] | None:
        part = comm.split(comm.rank % 2 if comm.rank < 3 else -1, -comm.rank)
        return None if part is None else (part.rank, part.size)

    assert on_every_rank(group, body) == [(1, 2), (0, 1), (0, 2), None]


def test_an_abort_reaches_the_others() -> None:
    group = penstock.Communicator.threads(2)

    def body(comm: penstock.Communicator) -> str:
        if comm.rank == 0:
            comm.abort("the disk is on fire")
            return ""
        with pytest.raises(penstock.Error, match="the disk is on fire") as caught:
            comm.barrier()
        return caught.value.code

    assert on_every_rank(group, body) == ["", "PeerFailed"]


def test_an_exception_of_a_callback_is_a_failed_peer() -> None:
    causes: list[str] = []

    def broken(mine: bytes) -> list[bytes]:
        raise RuntimeError("no route to host")

    comm = penstock.Communicator.callbacks(0, 2, broken, None, abort=causes.append)
    with pytest.raises(penstock.Error, match="no route to host") as caught:
        comm.all_gather_bytes(b"")
    assert caught.value.code == "PeerFailed"

    comm = penstock.Communicator.callbacks(0, 2, lambda mine: [1, 2])  # type: ignore[arg-type,list-item,return-value]
    with pytest.raises(penstock.Error, match="callback"):
        comm.all_gather_bytes(b"")


def test_split_of_callbacks_makes_smaller_groups() -> None:
    host = HostGroup(3)
    pairs = {(0, 2): HostGroup(2), (1,): HostGroup(1)}

    def callbacks_of(rank: int) -> penstock.Communicator:
        def split(groups: list[list[int]], mine: int) -> dict[str, object] | None:
            if mine < 0:
                return None
            ranks = groups[mine]
            part = pairs[tuple(sorted(ranks))]
            index = ranks.index(rank)
            return {"all_gather_bytes": lambda data: part.all_gather(index, data)}

        return penstock.Communicator.callbacks(
            rank, 3, lambda mine: host.all_gather(rank, mine), split=split)

    def body(comm: penstock.Communicator) -> list[bytes]:
        part = comm.split(comm.rank % 2, 0)
        assert part is not None
        return part.all_gather_bytes(b"x" * comm.rank)

    got = on_every_rank([callbacks_of(rank) for rank in range(3)], body)
    assert got == [[b"", b"xx"], [b"x"], [b"", b"xx"]]


RANK_PROGRAM = """
import sys
import time
import penstock
comm = penstock.Communicator.join_launch(deadline_seconds=20)
if len(sys.argv) > 1 and comm.rank == 1:
    print("the roof leaks", file=sys.stderr)
    sys.exit(7)
try:
    everyone = comm.all_gather_bytes(b"%d of %d" % (comm.rank, comm.size))
except penstock.Error:
    time.sleep(60)  # until the launcher ends it: the one that failed is to be the first that ends
if comm.rank == 0:
    print(b", ".join(everyone).decode())
"""


def test_processes_find_each_other(capfd: pytest.CaptureFixture[str]) -> None:
    result = penstock.launch_processes([sys.executable, "-c", RANK_PROGRAM], 3)
    assert result.first_failure is None and [end.rank for end in result.ends] == [0, 1, 2]
    assert capfd.readouterr().out == "0 of 3, 1 of 3, 2 of 3\n"


def test_a_failed_process_is_named() -> None:
    lines: list[tuple[int, str]] = []
    result = penstock.launch_processes([sys.executable, "-c", RANK_PROGRAM, "fail"], 2,
                                       environment={"PYTHONUNBUFFERED": "1"},
                                       on_stderr=lambda rank, line: lines.append((rank, line)))
    assert result.first_failure is not None
    assert (result.first_failure.rank, result.first_failure.exit_code) == (1, 7)
    assert str(result.first_failure) == "rank 1 ended with exit code 7"
    assert (1, "the roof leaks") in lines


def test_a_process_without_a_launcher_has_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PENSTOCK_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(penstock.Error, match="launch_processes") as caught:
        penstock.Communicator.join_launch()
    assert caught.value.code == "NotFound"


def test_arguments_are_checked() -> None:
    with pytest.raises(penstock.InvalidArgument):
        penstock.Communicator.threads(0)
    with pytest.raises(penstock.InvalidArgument):
        penstock.Communicator.callbacks(2, 2, lambda mine: [mine, mine])
