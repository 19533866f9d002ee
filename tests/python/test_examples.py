"""The programs under examples/python/ run, and say what the documents promise."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import penstock
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "examples" / "python"
TOKENIZER = ROOT / "examples" / "deepseek_v3_tokenizer.json.xz"


def run(*command: str | pathlib.Path, environment: dict[str, str] | None = None) -> str:
    """What a command prints; its failure, with its messages, fails the test."""
    few_threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    ran = subprocess.run([str(part) for part in command], capture_output=True, text=True,
                         check=False, timeout=110,
                         env={**os.environ, **few_threads, **(environment or {})})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def make_model(path: pathlib.Path, *options: str | pathlib.Path) -> pathlib.Path:
    run(sys.executable, "-m", "penstock", "make-model", path, "--hidden", "64", *options)
    return path


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Engram at layers 1 and 3."""
    return make_model(tmp_path_factory.mktemp("demo") / "demo", "--layers", "1,3",
                      "--engram-vocab-size", "500", "--tokenizer", TOKENIZER)


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A gate at layer 2."""
    return make_model(tmp_path_factory.mktemp("gates") / "gates", "--like", "hy-v4", "--heads", "4",
                      "--v-head-dim", "32", "--layers", "2")


def test_look_up_rows(demo: pathlib.Path) -> None:
    out = run(sys.executable, EXAMPLES / "01_look_up_rows.py", demo)
    assert out.splitlines()[-1] == "36864 numbers are equal, bit for bit"


def test_prefetch_in_a_step(demo: pathlib.Path) -> None:
    out = run(sys.executable, EXAMPLES / "02_prefetch_in_a_step.py", demo)
    assert out.splitlines()[-1] == "prefill and decode give what one step gives"


def test_one_table_for_many_processes(demo: pathlib.Path) -> None:
    out = run(sys.executable, EXAMPLES / "03_one_table_many_processes.py", demo)
    assert out.startswith("one copy of ") and out.count("24000 rows are equal") == 4


def step_arguments(demo: pathlib.Path, gates: pathlib.Path) -> list[str | pathlib.Path]:
    return [EXAMPLES / "reference_step.py", demo, gates, "--gate-layers", "2", "--steps", "1",
            "--requests", "1", "--length", "40"]


def assert_equal_on(ranks: int, out: str) -> None:
    lines = out.splitlines()
    assert sum(line.endswith("equal") for line in lines) == ranks, out
    assert sum("% hidden" in line for line in lines) == 2 * ranks, out


def test_reference_step_on_eight_ranks(demo: pathlib.Path, gates: pathlib.Path) -> None:
    assert_equal_on(8, run(sys.executable, *step_arguments(demo, gates), "--ranks", "8"))


@pytest.mark.parametrize("strategy", ["n_shard", "replicated"])
def test_reference_step_of_other_strategies(demo: pathlib.Path, gates: pathlib.Path,
                                            strategy: str) -> None:
    assert_equal_on(2, run(sys.executable, *step_arguments(demo, gates), "--ranks", "2",
                           "--strategy", strategy))


def test_reference_step_tells_hidden_states_that_differ(demo: pathlib.Path,
                                                        gates: pathlib.Path) -> None:
    # k_shard adds partial sums, and so rounds otherwise than a whole weight.
    ran = subprocess.run([sys.executable, *map(str, step_arguments(demo, gates)), "--ranks", "2",
                          "--strategy", "k_shard"], capture_output=True, text=True, check=False)
    assert ran.returncode == 1 and "DIFFERENT" in ran.stdout, ran.stdout + ran.stderr


def test_reference_step_under_mpirun(demo: pathlib.Path, gates: pathlib.Path) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    out = run("mpirun", "--oversubscribe", "--bind-to", "none", "-n", "2", sys.executable,
              *step_arguments(demo, gates),
              environment={"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
    assert_equal_on(2, out)


@pytest.mark.parametrize("communicator", ["launch", "torch"])
def test_reference_step_under_torchrun(torch: object, demo: pathlib.Path, gates: pathlib.Path,
                                       communicator: str) -> None:
    out = run(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
              "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
              *step_arguments(demo, gates), "--math", "torch", "--communicator", communicator)
    assert_equal_on(2, out)


def test_the_package_is_the_one_under_test() -> None:
    out = run(sys.executable, "-c", "import penstock; print(penstock.__file__)")
    assert out.strip() == penstock.__file__
