"""The deployment contract as Python sees it."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import penstock
import pytest

LEGAL: dict[str, Any] = {
    "model": {"architecture": "HYV4ForCausalLM", "num_nextn_predict_layers": 3},
    "parallel": {"pcp": 8, "expert_parallel": True},
    "speculative": {"method": "mtp", "num_speculative_tokens": 3, "draft_model_config": {}},
    "gate": {"pcp_shard": True},
}


def test_a_legal_deployment_has_no_violations(tmp_path: pathlib.Path) -> None:
    assert penstock.check(LEGAL) == []
    path = tmp_path / "deployment.json"
    path.write_text(json.dumps(LEGAL))
    assert penstock.check(path) == penstock.check(str(path)) == []


def test_a_violation_is_a_dict_of_four_texts() -> None:
    bad = {**LEGAL, "speculative": {**LEGAL["speculative"], "num_speculative_tokens": 2}}
    [violation] = penstock.check(bad)
    assert set(violation) == {"rule", "found", "needs", "message"}
    assert violation["rule"] == "hyv4-pcp-native-mtp"
    assert violation["found"] == "num_speculative_tokens = 2"
    assert violation["needs"] == "3, the checkpoint's native depth"


def test_bad_documents_raise(tmp_path: pathlib.Path) -> None:
    with pytest.raises(penstock.InvalidArgument, match=r"parallel\.tp"):
        penstock.check({"parallel": {"tp": "two"}})
    with pytest.raises(penstock.InvalidArgument, match="colour"):
        penstock.check({"colour": "red"})
    with pytest.raises(penstock.Error) as caught:
        penstock.check(tmp_path / "none.json")
    assert caught.value.code == "NotFound"
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(penstock.Error) as caught:
        penstock.check(tmp_path / "bad.json")
    assert caught.value.code == "CorruptFile"


def test_the_switch_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    document = {**LEGAL, "gate": {}, "parallel": {**LEGAL["parallel"], "tp": 2}}
    assert penstock.check(document) == []
    monkeypatch.setenv("PENSTOCK_GATE_PCP_SHARD", "yes")
    assert [violation["rule"] for violation in penstock.check(document)] == ["hyv4-gate-tp-one"]
    monkeypatch.setenv("PENSTOCK_GATE_PCP_SHARD", "")
    with pytest.raises(penstock.InvalidArgument, match="PENSTOCK_GATE_PCP_SHARD"):
        penstock.check(document)


def test_the_console_script_is_the_command(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "deployment.json"
    path.write_text(json.dumps({**LEGAL, "kv_cache_dtype": "int8"}))
    ran = subprocess.run([sys.executable, "-m", "penstock", "check", str(path), "--json"],
                         capture_output=True, text=True, check=False)
    assert ran.returncode == 5, ran.stderr
    answer = json.loads(ran.stdout)
    assert answer["violations"] == penstock.check(path)
