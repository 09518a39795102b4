"""The figures of the page On a GPU are those of its records."""

import json
import re
from statistics import median

import pytest

from course.compare import ratio
from course.runs import read_run
from tests import runner

PAGE = " ".join((runner.ROOT / "site/pages/gpu.md").read_text(encoding="utf-8").split())
H100, H200 = (runner.ROOT / "results/recorded" / name for name in ("1xh100", "1xh200"))
GPT = json.loads((H100 / "gpt.json").read_text())
TOKENS = GPT["batch"] * GPT["context"]
NAMES = {"fp32": "float32", "tf32": "TF32", "bf16": "bf16", "bf16 ddp": "bf16, DDP of one rank",
         "bf16 compiled": "bf16, compiled", "bf16 compiled ddp": "bf16, DDP of one rank, compiled"}


@pytest.mark.parametrize("name", NAMES)
def test_a_step_of_the_language_model(name):
    facts = GPT["variants"][name]
    seconds = facts["seconds per step"]
    ms = [1000 * each for each in seconds]
    assert (f"| {NAMES[name]} | {median(ms):.1f} ({min(ms):.1f} to {max(ms):.1f}) | "
            f"{TOKENS / median(seconds):,.0f} | {facts['peak bytes above the start'] / 2**30:.1f} |") in PAGE


def test_the_figures_between_the_tables():
    plain, compiled = GPT["variants"]["bf16"], GPT["variants"]["bf16 compiled"]
    seconds = [GPT["variants"][name]["seconds per step"] for name in ("fp32", "bf16", "bf16 compiled")]
    begun = compiled["first three steps, seconds"]
    updates = (begun - plain["first three steps, seconds"]) / (median(seconds[1]) - median(seconds[2]))
    held = [f"{size / 2**30:.2f}" for place, size in GPT["memory"] if place in ("before", "loss", "backward done")]
    profile = (H100 / "profile.txt").read_text()
    total = float(re.search(r"Self CUDA time total: ([\d.]+)ms", profile)[1])
    for figure in (str(ratio(seconds[1], seconds[0])), str(ratio(seconds[2], seconds[1])), f"{begun:.1f} s",
                   f"{round(updates, -2):,.0f} updates", *held, f"{total:.1f} ms", GPT["torch"], GPT["gpu"]):
        assert figure in PAGE, figure


@pytest.mark.parametrize("folder", [H100, H200], ids=["h100", "h200"])
def test_main_py_with_one_option_after_another(folder):
    for path in sorted(folder.glob("*.jsonl")):
        if "gloo" not in path.name:
            seconds = read_run(path).seconds
            assert f"| `{path.name}` | {' / '.join(f'{each:.2f}' for each in seconds)} |" in PAGE, path


@pytest.mark.weekly  # it compiles
@pytest.mark.timeout(600)
def test_what_records_a_gpu_can_be_rehearsed_without_one(tmp_path):
    done = runner.run(1, "--rehearse", "--rounds", 1, "--out", tmp_path, script="scripts/measure/one_gpu.py",
                      limit=500)
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "gpt.json").read_text())["variants"]
    assert facts["bf16 compiled"]["graphs"] == 1 and facts["bf16"]["graphs"] == 0
    assert facts["bf16 compiled"]["new graphs of half a batch"] >= 1
