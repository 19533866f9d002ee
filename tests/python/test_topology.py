"""column_shards and edp_groups against golden cases and the numpy reference."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import penstock
import pytest
from hypothesis import given
from hypothesis import strategies as st


def test_column_shards_match_golden_cases(golden: Any) -> None:
    failures = 0
    for case in golden("shards.json"):
        if "error" in case:
            failures += 1
            with pytest.raises(penstock.InvalidArgument):
                penstock.column_shards(case["head_sizes"], case["shards"])
        else:
            got = penstock.column_shards(case["head_sizes"], case["shards"])
            assert [list(shard) for shard in got] == case["bounds"]
    assert failures > 0


@given(sizes=st.lists(st.integers(1, 100), min_size=1, max_size=30), shards=st.integers(1, 32))
def test_column_shards_match_reference(reference: ModuleType, sizes: list[int],
                                       shards: int) -> None:
    try:
        want = reference.column_shards(sizes, shards)
    except ValueError:
        with pytest.raises(penstock.InvalidArgument):
            penstock.column_shards(sizes, shards)
    else:
        assert [list(shard) for shard in penstock.column_shards(sizes, shards)] == want


def test_edp_groups_match_golden_cases(golden: Any) -> None:
    for case in golden("edp_groups.json"):
        sizes = {key: case[key] for key in ("dp", "tp", "pp", "pcp", "external_dp") if key in case}
        size, groups = penstock.edp_groups(case["node_of_rank"], **sizes)
        assert (size, groups) == (case["size"], case["groups"])


@given(dp=st.integers(1, 4), tp=st.integers(1, 3), pp=st.integers(1, 2), pcp=st.integers(1, 2),
       external_dp=st.integers(1, 2), nodes=st.integers(1, 4), data=st.data())
def test_edp_groups_match_reference(reference: ModuleType, dp: int, tp: int, pp: int, pcp: int,
                                    external_dp: int, nodes: int, data: st.DataObject) -> None:
    world = dp * tp * pp * pcp * external_dp
    if data.draw(st.booleans()):
        places = [rank * nodes // world for rank in range(world)]
    else:
        places = data.draw(st.lists(st.integers(0, nodes - 1), min_size=world, max_size=world))
    got = penstock.edp_groups(places, dp, tp, pp, pcp, external_dp)
    assert got == tuple(reference.edp_groups(places, dp, tp, pp, pcp, external_dp))


def test_edp_groups_need_a_node_for_each_rank() -> None:
    with pytest.raises(penstock.InvalidArgument):
        penstock.edp_groups([0, 0, 0], dp=4, tp=1)
    with pytest.raises(penstock.InvalidArgument):
        penstock.edp_groups([], dp=0, tp=1)
