"""Lesson 12: ranks that hang, live; what was recorded or played for the exercises is what they say."""

import json
import pickle
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from lessons.l12_break_it import check, hang, show
from tests import runner

PROGRAM = "lessons/l12_break_it/hang.py"


def hung(folder, ranks, culprit, fault):
    done = runner.run(0, folder, "--ranks", ranks, "--culprit", culprit, "--fault", fault, script=PROGRAM)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "truth.json").read_text()) == {"culprit": culprit, "fault": fault}
    return folder


LIVE = {"packs": (4, 2), "logs": (4, 1), "other": (16, 6)}  # {fault: (ranks, culprit)}; 16 are on two nodes


@pytest.fixture(scope="module")
def hangs(tmp_path_factory):
    """{fault: folder}, live. The ranks mostly wait, so they do it at the same time."""
    folder = tmp_path_factory.mktemp("hangs")
    with ThreadPoolExecutor() as pool:
        folders = pool.map(lambda fault: hung(folder / fault, *LIVE[fault], fault), LIVE)
        return dict(zip(LIVE, folders, strict=True))


@pytest.mark.parametrize("fault", ["packs", "logs"])
def test_four_live_stacks_name_the_culprit_and_stand_where_the_recorded_ones_do(fault, hangs):
    culprit, texts = LIVE[fault][1], {rank: (hangs[fault] / f"{rank}.txt").read_text() for rank in range(4)}
    assert check.culprit_of_stacks(texts) == (culprit, hang.FAULTS[fault])
    assert [check.innermost(text) for text in texts.values()] == [
        check.innermost(text) for text in check.recorded_stacks(fault, culprit).values()]


def summary(dumps):
    """What exercise 2 needs of each rank's dump; whatever the library is called."""
    return {rank: ({group["desc"]: group["ranks"] for group in dump["pg_config"].values()
                    if group["desc"] != "default_pg"},
                   [(entry["process_group"][1], entry["collective_seq_id"], entry["profiling_name"].split(":")[1],
                     entry["retired"]) for entry in dump["entries"]])
            for rank, dump in dumps.items()}


def test_live_dumps_name_the_culprit_and_the_played_ones_say_the_same(hangs):
    ranks, culprit = LIVE["other"]
    dumps = {rank: pickle.loads((hangs["other"] / f"rank_{rank}").read_bytes()) for rank in range(ranks)}
    assert check.culprit_of_dumps(dumps) == (culprit, f"node {culprit // 8}", 23)
    played = check.dumps_of(ranks, 8, culprit, "other", 11, 2000)
    assert summary(played) == summary(dumps)
    entry, its = played[0]["entries"][-1], dumps[0]["entries"][-1]
    assert entry.keys() <= its.keys()
    assert {name: type(value) for name, value in entry.items()} == {name: type(its[name]) for name in entry}


def test_torchfrtrace_misses_the_culprit_and_names_others_who_only_wait(hangs):
    done = runner.run(0, "torch.distributed.flight_recorder.fr_trace", "--prefix", "rank_", hangs["other"], script="-m")
    assert done.returncode == 0, done.stderr
    lines = show.missing((done.stdout + done.stderr).splitlines())
    assert len(lines) > 1 and not any(re.search(rf"\b{LIVE['other'][1]}\b", line) for line in lines), lines


@pytest.mark.parametrize("arguments", [["--ranks", 12], ["--ranks", 16, "--culprit", 8], ["--fault", "late"]])
def test_bad_input(arguments, tmp_path, refused):
    refused(hang, tmp_path / "hang", *arguments)
    assert not (tmp_path / "hang").exists()
