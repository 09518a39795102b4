"""The files of lesson 10's exercises under rehearsal and real launchers, its cards, and its map."""

import json
import re

import psutil
import pytest

from course.exercise import edited
from lessons.l10_launchers import check, show, who
from tests import runner

CARDS = "lessons/l10_launchers/cards"


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.weekly), 3])
def test_a_rank_reports_what_torchrun_tells_it(ranks):
    done = runner.torchrun(ranks, "--epochs", 7, script="lessons/l10_launchers/who.py")
    assert done.returncode == 0, done.stderr
    found, _ = who.reports(done.stdout)
    assert [each["rank"]["RANK"] for each in found] == [str(rank) for rank in range(ranks)]
    assert {each["rank"]["WORLD_SIZE"] for each in found} == {str(ranks)}
    assert len({each["parent"] for each in found}) == 1 and not any("RANK" in each["launcher"] for each in found)
    assert found[0]["words"] == ["--epochs", "7"] and found[0]["script"] is None


EACH_ITS_NUMBER = edited(check.STATIC, {"srun torchrun": "export first port; srun --label bash -c 'torchrun",
                                        'train.py "$@"': "train.py \"$@\"' job \"$@\""})


@pytest.mark.parametrize(("text", "outcome"), [
    (EACH_ITS_NUMBER, "right"),
    (edited(check.JOB, {"srun": "srun -N 2 -n 2 --cpu-bind none"}), "right"),
    (edited(check.JOB, {"\n\n": "\npython -c 'import torch'\n"}), "right"),
    (edited(check.JOB, {"torchrun": "python -u -m torch.distributed.run"}), "right"),
    ('#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node 2\nsrun python mine/train.py "$@"\n', "wrong"),
    (edited(check.JOB, {"#SBATCH --nodes=2": "cd .\n#SBATCH --nodes=2"}), "wrong"),
    (edited(check.JOB, {" % 10000": ""}), "wrong"), (edited(check.JOB, {" % 10000": " % 2"}), "wrong"),
    (edited(check.JOB, {"torchrun ": "torchrnu "}), "wrong"), ("# only comments\n", "untried")])
def test_a_job_is_judged_by_what_it_starts(text, outcome, monkeypatch, tmp_path):
    monkeypatch.setattr("course.slurm.missing", lambda: "none is here")
    monkeypatch.setattr(check.job, "mistakes", {})  # to find the one behind a wrong file takes time
    (tmp_path / "job.sbatch").write_text(text)
    assert check.job.verdict(str(tmp_path / "job.sbatch"))[0] == outcome


def test_a_rehearsal_leaves_no_process():
    assert check.rehearse("sleep 4711 &\ntorchrun mine/train.py", HOST_NAME="node0")[0][0]["words"] == ["mine/train.py"]
    assert not [each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == ["sleep", "4711"]]


def test_what_two_hosts_refuse_is_wrong_though_it_reads_well(monkeypatch):
    monkeypatch.setattr(check.Cluster, "available", lambda: None)
    monkeypatch.setattr(check, "on_two_hosts", lambda text: "no route to host")
    monkeypatch.setattr(check.line, "mistakes", {})
    outcome, message = check.line.verdict(check.LINE)
    assert outcome == "wrong" and "no route to host" in message


@pytest.mark.weekly
def test_a_quiet_print_hides_rank_1s_complaint():
    done = runner.run(2, script=f"{CARDS}/quiet_print.py")
    assert done.returncode == 0, done.stderr
    assert "step 1: loss nan" in done.stdout and "no numbers" not in done.stdout and "rank 1 ends" in done.stdout


@pytest.mark.weekly
@pytest.mark.parametrize("processes", [2, 3])
def test_the_spawned_trainer_trains_and_ends(processes):
    done = runner.run(0, "--n_gpus", processes, "--images", 400, "--epochs", 2, script=f"{CARDS}/spawn_trainer.py")
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    assert len(losses) == 2 and losses[1] < losses[0]


def test_the_map_shows_what_the_ranks_reported():
    ax = show.map_of(reports := json.loads((runner.ROOT / show.RECORDED / "10_map.json").read_text()))
    shown = "\n".join(text.get_text() for text in ax.texts)
    for report in reports:
        assert f"RANK={report['rank']['RANK']}\nLOCAL_RANK={report['rank']['LOCAL_RANK']}" in shown
    show.plt.close(ax.figure)


def test_a_log_tells_who_listens_and_who_gets_which_ranks():
    log = (runner.ROOT / show.RECORDED / "10_rendezvous.txt").read_text()
    rows = [(row["who"], re.findall(r"\d+", row["what"])) for row in show.meeting(log)]
    assert rows[:3] == [("torchrun on node0", ["0", "29400"]), ("torchrun on node1", ["0", "29400"]),
                        ("torchrun on node0", ["0", "33303"])]
    assert sorted(rows[3:5]) == [("torchrun on node0", ["0", "0", "1", "0", "33303"]),
                                 ("torchrun on node1", ["1", "2", "3", "0", "33303"])]
    assert sorted(rows[5:]) == [(f"a rank on node{host}", ["0", "33303"]) for host in (0, 0, 1, 1)]
