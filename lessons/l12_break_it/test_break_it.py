"""Lesson 12: ranks that hang, live; the program that is repaired; looks are counted."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from course.exercise import edited
from lessons.l12_break_it import check, hang, incident, repair, show
from tests import runner

PROGRAM = "lessons/l12_break_it/hang.py"
LIVE = {"late": 13, "other": 6}  # {fault: culprit} of 16 ranks on two nodes


@pytest.fixture(scope="module")
def hangs(tmp_path_factory):
    """{fault: folder}, live. The ranks mostly wait, so they do it at the same time."""
    folder = tmp_path_factory.mktemp("hangs")

    def hung(fault):
        done = runner.run(0, folder / fault, "--ranks", 16, "--culprit", LIVE[fault], "--fault", fault, script=PROGRAM)
        assert done.returncode == 0, done.stderr
        return folder / fault

    with ThreadPoolExecutor() as pool:
        return dict(zip(LIVE, pool.map(hung, LIVE), strict=True))


def summary(dumps):
    """What the exercise needs of each rank's dump; whatever the library is called."""
    return {rank: ({group["desc"]: group["ranks"] for group in dump["pg_config"].values()
                    if group["desc"] != "default_pg"},
                   [(entry["process_group"][1], entry["collective_seq_id"], entry["profiling_name"].split(":")[1],
                     entry["retired"]) for entry in dump["entries"]])
            for rank, dump in dumps.items()}


@pytest.mark.weekly
@pytest.mark.parametrize("fault", LIVE)
def test_live_dumps_name_the_culprit_and_the_played_ones_say_the_same(fault, hangs):
    culprit, dumps = LIVE[fault], incident.dumps_of(hangs[fault])
    named = culprit, f"node {culprit // 8}", 23
    assert json.loads((hangs[fault] / "truth.json").read_text()) == {"culprit": culprit, "fault": fault}
    assert check.culprit_of_dumps(dumps) == named
    assert summary(check.dumps_of(16, 8, culprit, fault, 11, 2000)) == summary(dumps)
    first = (hangs[fault] / f"{culprit}.txt").read_text().splitlines()[0]
    assert first.startswith("load_batch" if fault == "late" else "barrier")
    arrows = show.graph(dumps, named)
    assert culprit not in arrows and len(arrows) == 15
    for rank in arrows:  # each chain ends at the culprit
        steps = 0
        while rank != culprit:
            rank, steps = arrows[rank], steps + 1
            assert steps < 5


@pytest.mark.parametrize("arguments", [["--ranks", 12], ["--ranks", 16, "--culprit", 8], ["--fault", "sleepy"]])
def test_bad_input(arguments, tmp_path, refused):
    refused(hang, tmp_path / "hang", *arguments)
    assert not (tmp_path / "hang").exists()


@pytest.mark.weekly
def test_looks_are_counted_once_each_and_end(hangs, capsys):
    look = incident.hang(str(hangs["late"]))
    for name in ("stack 1", "stack 1", "stack 99", "tea"):
        look(name)
    assert look.seen == ["stack 1"]
    for rank in range(2, 12):
        look(f"stack {rank}")
    assert look.left == 0 and "All 10 looks are used" in capsys.readouterr().out


@pytest.mark.parametrize("look,path", [(incident.silent(), ("log", "file", "compare more", "program")),
                                       (incident.slow(), ("log", "own network", "frames"))])
def test_the_looks_that_suffice_leave_one_to_spare(look, path, capsys):
    for name in path:
        look(name)
    assert look.left == 1 and look.budget < len(look.evidence), "and nobody can take them all"


def test_what_a_cell_shows_of_the_evidence(tmp_path):
    assert incident.one_model() == "yes"
    (tmp_path / "said").write_text("epoch 0\ndoctor: wrong: x\n    Law 1\nE1128 torchrun's own\n")
    assert incident.report_of(tmp_path / "said") == "doctor: wrong: x\n    Law 1\n"


@pytest.mark.weekly
@pytest.mark.parametrize("edits,outcome,words", [
    (repair.REPAIR, "right", ""), ({"default=1.0": "default=2.0"}, "wrong", "no: ranks 0 and 1 part in update 4"),
    ({" or number == len(loader)": ""}, "wrong", "4 updates per epoch")])
def test_a_repair_of_job_4802(edits, outcome, words, tmp_path):
    path = tmp_path / "job_4802.py"
    path.write_text(edited(repair.JOB_4802.read_text(), edits))
    verdict = repair.repaired.verdict(path)
    assert verdict[0] == outcome and words in verdict[1], verdict
