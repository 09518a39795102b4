"""Lesson 12: ranks that hang, live; what was recorded or played for the exercises is what they say."""

import json
import pickle
import re
from concurrent.futures import ThreadPoolExecutor

import matplotlib as mpl
import pytest

from lessons.l12_break_it import check, hang, show
from tests import runner

mpl.use("Agg")
PROGRAM = "lessons/l12_break_it/hang.py"


def hung(folder, ranks, culprit, fault):
    done = runner.run(0, folder, "--ranks", ranks, "--culprit", culprit, "--fault", fault, script=PROGRAM)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "truth.json").read_text()) == {"culprit": culprit, "fault": fault}
    return folder


NODES = {"late": 13, "other": 6}  # {fault: culprit} of 16 ranks on two nodes


@pytest.fixture(scope="module")
def hangs(tmp_path_factory):
    """{fault: folder} of all hangs, live. They mostly wait, so they do it at the same time."""
    folder = tmp_path_factory.mktemp("hangs")
    cases = [(4, place % 4, fault) for place, fault in enumerate(hang.FAULTS)]
    cases += [(16, culprit, fault) for fault, culprit in NODES.items()]
    with ThreadPoolExecutor() as pool:
        folders = pool.map(lambda case: hung(folder / case[-1], *case), cases)
        return {fault: of_case for (*_, fault), of_case in zip(cases, folders, strict=True)}


def test_four_live_stacks_name_the_culprit_and_stand_where_the_recorded_ones_do(hangs):
    for place, fault in enumerate(hang.FAULTS):
        culprit, texts = place % 4, {rank: (hangs[fault] / f"{rank}.txt").read_text() for rank in range(4)}
        assert check.culprit_of_stacks(texts) == (culprit, hang.FAULTS[fault])
        recorded = check.recorded_stacks(fault, culprit)
        assert [check.innermost(text) for text in texts.values()] == [
            check.innermost(text) for text in recorded.values()], fault
        assert not any(str(runner.ROOT) in text for text in texts.values())


@pytest.fixture(params=NODES)
def live(request, hangs):
    """(fault, culprit, folder, {rank: its dump})"""
    folder = hangs[request.param]
    dumps = {rank: pickle.loads((folder / f"rank_{rank}").read_bytes()) for rank in range(16)}
    return request.param, NODES[request.param], folder, dumps


def summary(dumps):
    """What exercise 2 needs of each rank's dump; whatever the library is called."""
    return {rank: ({group["desc"]: group["ranks"] for group in dump["pg_config"].values()
                    if group["desc"] != "default_pg"},
                   [(entry["process_group"][1], entry["collective_seq_id"], entry["profiling_name"].split(":")[1],
                     entry["retired"]) for entry in dump["entries"]])
            for rank, dump in dumps.items()}


def test_live_dumps_name_the_culprit_and_the_played_ones_say_the_same(live):
    fault, culprit, _, dumps = live
    assert check.culprit_of_dumps(dumps) == (culprit, f"node {culprit // 8}", 23)
    played = check.dumps_of(16, 8, culprit, fault, 11, 2000)
    assert summary(played) == summary(dumps)
    entry, its = played[0]["entries"][-1], dumps[0]["entries"][-1]
    assert entry.keys() <= its.keys()
    assert {name: type(value) for name, value in entry.items()} == {name: type(its[name]) for name in entry}


def test_torchfrtrace_misses_the_culprit_and_others_who_only_wait(live):
    fault, culprit, folder, _ = live
    done = runner.run(0, "torch.distributed.flight_recorder.fr_trace", "--prefix", "rank_", folder, script="-m")
    assert done.returncode == 0, done.stderr
    lines = show.missing((done.stdout + done.stderr).splitlines())
    assert len(lines) > 1 and any(re.search(rf"\b{culprit}\b", line) for line in lines) == (fault == "late"), lines


def test_the_picture_frames_the_rank_that_was_named(live):
    fault, culprit, folder, dumps = live
    assert check.dumps.or_ours(None) == (check.culprit_of_dumps, "our")
    function, drawn = show.named("our", check.culprit_of_dumps(dumps), folder)
    assert function["culprit"] == drawn["culprit"] == culprit and drawn["collective"] == f"(fault: {fault})"
    (ax,) = show.waiting(dumps, 8, "our", culprit).axes
    assert {text.get_text() for text in ax.texts} == {*map(str, range(16)), f"← our function: rank {culprit}"}


@pytest.mark.parametrize("arguments", [["--ranks", 12], ["--ranks", 16, "--culprit", 8], ["--fault", "late"]])
def test_bad_input_is_one_line(arguments, tmp_path):
    done = runner.run(0, tmp_path / "hang", *arguments, script=PROGRAM)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1 and not (tmp_path / "hang").exists()
