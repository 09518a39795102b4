"""The preflight: what it names, and that it accuses nobody of a sound job."""

import json

import pytest

from doctor import preflight
from tests import runner


def judged(folder, ranks, *dial, **env):
    """(exit status, its troubles as (name, who))"""
    out, begin = folder / "found.json", ["course.dial", *dial, "-m"] if dial else []
    done = runner.run(ranks, *begin, "doctor", "--preflight", "--json", out, script="-m", **env)
    return done.returncode, [(each["name"], each["who"]) for each in json.loads(out.read_text())["troubles"]]


def test_another_version_on_one_rank_is_named_and_else_nothing(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os\nif os.environ.get('RANK') == '1':\n    import torch\n    torch.__version__ = '2.13.0'\n")
    status, found = judged(tmp_path, 3, PYTHONPATH=f"{tmp_path}:{runner.ROOT}")
    assert status == 1 and [(name, who.partition(" on")[0]) for name, who in found] == [("versions", "rank 1")]


@pytest.mark.weekly
@pytest.mark.parametrize(("slow", "name", "who"), [("2:20mbit", "slow_links", "rank 2"),
                                                   ("0-1:20mbit", "slow_connection", "rank 0 and rank 1")])
def test_slow_connections_are_named(tmp_path, slow, name, who):
    status, found = judged(tmp_path, 3, "--rate", "200mbit", "--slow", slow)
    assert status == 1 and [(each, of.partition(" on")[0]) for each, of in found] == [(name, who)]


@pytest.mark.weekly
@pytest.mark.timeout(2400)
def test_twenty_runs_of_a_sound_job_accuse_nobody(tmp_path):
    assert [judged(tmp_path, 2) for _ in range(20)] == [(0, [])] * 20


@pytest.mark.parametrize("size", [1, 2, 3, 6, 7])
def test_each_pair_of_ranks_meets_once(size):
    rounds = list(preflight.schedule(size))
    pairs = [tuple(sorted(pair)) for each in rounds for pair in each.items() if pair[0] < pair[1]]
    assert len(pairs) == len(set(pairs)) == size * (size - 1) // 2
