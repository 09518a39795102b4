"""Every command of the page "My script, my cluster", as it stands there, with few images: on one machine, on two hosts,
and on a real Slurm."""

import json
import os
import re
import subprocess
import sys
import textwrap

import pytest

from course import slurm as slurm_lab
from course.hosts import Cluster
from tests import runner

PAGE = (runner.ROOT / "site/pages/cluster.md").read_text(encoding="utf-8")
BLOCKS = [(where, textwrap.dedent(indent + code)) for indent, where, code in re.findall(
    r"^( *)```sh ?([^\n]*)\n(.+?)^ *```$", PAGE, re.M | re.S)]
SETTINGS, *LOCAL = [code for where, code in BLOCKS if where == ""]
ON_BOTH = [code for where, code in BLOCKS if where == "on both nodes"]
WHY_NOT = Cluster.available()

pytestmark = pytest.mark.weekly


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """(the folder with my_train.py, its environment). What the page's reader sets: two ranks per node, this clone."""
    folder = tmp_path_factory.mktemp("job")
    for file in (runner.ROOT / "data/MNIST/raw").iterdir():  # the first images alone
        of_each, count = (784, 16) if "images" in file.name else (1, 8)
        few = 1200 if file.name.startswith("train") else 301
        raw = file.read_bytes()
        small = folder / "data/MNIST/raw" / file.name
        small.parent.mkdir(parents=True, exist_ok=True)
        small.write_bytes(raw[:4] + few.to_bytes(4, "big") + raw[8:count + few * of_each])
    env = runner.environment(RANKS="2", COURSE=str(runner.ROOT), FIRST_NODE="node0", PYTHONPATH=str(runner.ROOT),
                             PATH=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}", OMP_NUM_THREADS="1")
    copy = re.search("^cp .+$", SETTINGS, re.M)[0]  # not the pip install: this environment has the doctor
    subprocess.run(["bash", "-c", copy], cwd=folder, env=env, check=True)
    return folder, env


def test_each_block_of_the_page_has_a_test():
    assert [where for where, _ in BLOCKS if where not in ("", "on both nodes")] == [
        "in job.sbatch", "in the course's environment", "in the course's environment"]
    assert len(ON_BOTH) == 3 and len(LOCAL) == 5


@pytest.mark.parametrize("code", [code for where, code in BLOCKS if "torchrun --nproc" in code or "pretend" in code
                                  or "one_process" in code])
def test_on_one_machine(code, job):
    folder, env = job
    done = subprocess.run(["bash", "-c", code], cwd=folder, env=env, capture_output=True, text=True,
                          timeout=runner.LIMIT)
    assert done.returncode == 0, done.stderr
    if "doctor" in code:
        assert "nothing found" in done.stderr
    if "one_process" in code:
        assert re.findall(r"(?:ranks|process)\? +(\w+)", done.stdout) == 4 * ["yes"]


@pytest.mark.skipif(WHY_NOT is not None, reason=f"no hosts: {WHY_NOT}")
@pytest.mark.parametrize("code", ON_BOTH, ids=["train", "preflight", "film"])
def test_on_two_hosts(code, job):
    folder, env = job
    with Cluster(2) as hosts:
        nodes = [hosts.start(node, ["bash", "-c", code], cwd=folder, env=env, text=True, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT) for node in range(2)]
        printed = [node.communicate(timeout=runner.LIMIT)[0] for node in nodes]
        assert [node.returncode for node in nodes] == [0, 0], printed
    if "film" in code:
        film = json.loads(re.search(r"^const film = (.+);$", (folder / "run.html").read_text(), re.M)[1])
        assert {rank["host"].split()[0] for rank in film["ranks"]} == {"node0", "node1"}
        assert film["parted"] == film["missing"] == []
    elif "preflight" not in code:
        assert printed[0].count("Epoch: ") == 3 and printed[1].count("Epoch: ") == 0


@pytest.mark.skipif(bool(slurm_lab.missing()), reason=str(slurm_lab.missing()))
def test_the_job_file_runs_under_slurm_and_its_log_explains_a_failure(job):
    folder, env = job
    [file] = [code for where, code in BLOCKS if where == "in job.sbatch"]
    file = file.replace("--gpus-per-node=8 --cpus-per-task=64", "--gpus-per-node=0 --cpus-per-task=1")
    (folder / "job.sbatch").write_text(file)
    submit, explain = (next(code for where, code in BLOCKS if name in code and where != "in job.sbatch")
                       for name in ("sbatch job", "why_it_failed"))
    with slurm_lab.Slurm(nodes=2, gpus=8) as slurm:
        for ranks in ("1", "5"):  # five ranks a node: 96 images cannot be shared by ten
            waiting = slurm.start(["bash", "-c", submit.replace("sbatch ", "sbatch --wait ", 1)], cwd=folder, text=True,
                                  stdout=subprocess.PIPE, env=env | {"RANKS": ranks})
            number = re.search(r"job (\d+)", waiting.communicate(timeout=runner.LIMIT)[0])[1]
            log = (folder / f"slurm-{number}.out").read_text()
            assert (waiting.returncode == 0) == (ranks == "1"), log
            assert log.count("Epoch: ") == (3 if ranks == "1" else 0)
    said = subprocess.run(["bash", "-c", explain.replace("slurm-1.out", f"slurm-{number}.out")], cwd=folder, env=env,
                          capture_output=True, text=True, timeout=runner.LIMIT)
    assert "BATCH = 96 cannot be divided by 10 ranks" in said.stdout + said.stderr
