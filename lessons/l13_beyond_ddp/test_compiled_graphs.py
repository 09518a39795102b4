"""lessons/l13_beyond_ddp/compiled_graphs.py: where torch.compile splits DDP and FSDP2."""

import json

from lessons.l13_beyond_ddp import show
from tests import runner

SCRIPT = "lessons/l13_beyond_ddp/compiled_graphs.py"


def test_ddp_splits_at_buckets_and_fsdp_at_blocks(tmp_path):
    done = runner.run(2, "--out", tmp_path / "x.json", script=SCRIPT)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "x.json").read_text())
    default, small, uncut, blocks, whole, refused = found.values()
    assert len(uncut["graphs"]) == 1 < len(default["graphs"]) < len(small["graphs"])
    assert len(blocks["graphs"]) == len(whole["graphs"]) == 1, "four blocks, all alike: they share a graph"
    assert sum(uncut["graphs"]) <= sum(small["graphs"]) <= sum(uncut["graphs"]) + len(small["graphs"])
    assert all(one["off"] < 1e-5 for one in found.values() if "off" in one)
    assert "disable" in refused["error"] and "off" not in refused
    rows = show.graphs(found)
    assert [row["graphs"] for row in rows][:1] + [rows[-1]["graphs"]] == [str(len(default["graphs"])), "–"]


def test_one_process_is_refused_in_one_line(tmp_path):
    done = runner.run(0, "--out", tmp_path / "x.json", script=SCRIPT)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert "2 ranks or more" in done.stderr and not list(tmp_path.iterdir())
