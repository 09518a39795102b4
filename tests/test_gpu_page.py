"""The figures of the page On a GPU are those of its records."""

import gzip
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


def test_what_bf16_and_the_compiler_save():
    def of(one, other):
        return str(ratio(*(GPT["variants"][name]["seconds per step"] for name in (one, other))))

    assert f"bf16 takes {of('bf16', 'fp32')} times as long as float32" in PAGE
    assert f"A compiled step takes {of('bf16 compiled', 'bf16')} times as long as one in plain bf16" in PAGE
    compiled = GPT["variants"]["bf16 compiled"]
    assert f"The first three steps of the compiled model took {compiled['first three steps, seconds']:.1f} s" in PAGE
    plain = GPT["variants"]["bf16"]["first three steps, seconds"]
    saved = median(GPT["variants"]["bf16"]["seconds per step"]) - median(compiled["seconds per step"])
    updates = (compiled["first three steps, seconds"] - plain) / saved
    assert f"pays after about {round(updates, -2):,.0f} updates" in PAGE


def test_graphs_and_their_breaks():
    before = 0  # the recorded counter of graphs went on counting
    for name, new in (("bf16 compiled", ""), ("bf16 compiled ddp", " new")):
        facts = GPT["variants"][name]
        assert f"| {NAMES[name]} | {facts['graphs'] - before}{new} | {sum(facts['graph breaks'].values())} |" in PAGE
        before = facts["graphs"]
    log = (H100 / "compile.out").read_text()
    assert len(re.findall(r"\] Recompiling function", log)) == 1 and "graph break" not in log.lower()
    assert re.search(r"GLOBAL_STATE changed: grad_mode autocast", log)[0] in PAGE


def test_the_memory_of_a_step():
    held = {place: size / 2**30 for place, size in GPT["memory"]}
    assert (f"from {held['before']:.2f} to {held['loss']:.2f} GiB") in PAGE
    assert f"to {held['backward done']:.2f} GiB" in PAGE and f"{held['gradients gone']:.2f} GiB again" in PAGE
    up = {round((held[f"forward {n}"] - held[f"forward {n - 1}"]) * 1024, 1) for n in range(1, 12)}
    down = {round((held[f"backward {n}"] - held[f"backward {n - 1}"]) * 1024, 1) for n in range(2, 12)}
    assert len(up) == 1 and f"each block adds {up.pop():.1f} MiB" in PAGE
    assert any(f"takes {each:.1f} MiB away" in PAGE for each in down)


def test_the_trace():
    table = (H100 / "profile.txt").read_text()
    total = float(re.search(r"Self CUDA time total: ([\d.]+)ms", table)[1])
    assert f"{total:.1f} ms of GPU time" in PAGE
    rows = {line.split()[0]: line.split() for line in table.splitlines() if line.strip().startswith("aten::")}
    for name, words in {"aten::mm": "matrix products", "aten::copy_": "copies",
                        "aten::native_layer_norm_backward": "LayerNorm's backward",
                        "aten::_cudnn_attention_backward": "the attention's backward"}.items():
        assert f"| {words} (`{name}`) | {float(rows[name][6][:-2]):.1f} | {float(rows[name][7][:-1]):.0f} % |" in PAGE
    assert any(event.get("cat") == "kernel" for event in json.loads(gzip.decompress(
        (H100 / "profile.json.gz").read_bytes()))["traceEvents"])


@pytest.mark.parametrize("folder", [H100, H200], ids=["h100", "h200"])
def test_main_py_with_one_option_after_another(folder):
    for path in sorted(folder.glob("*.jsonl")):
        if "gloo" not in path.name:
            seconds = read_run(path).seconds
            assert f"| `{path.name}` | {' / '.join(f'{each:.2f}' for each in seconds)} |" in PAGE, path


def test_what_runs_has_its_versions():
    assert GPT["torch"] in PAGE and GPT["gpu"] in PAGE


@pytest.mark.weekly  # it compiles
@pytest.mark.timeout(600)
def test_what_records_a_gpu_can_be_rehearsed_without_one(tmp_path):
    done = runner.run(1, "--rehearse", "--rounds", 1, "--out", tmp_path, script="scripts/measure/one_gpu.py",
                      limit=500)
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "gpt.json").read_text())["variants"]
    assert facts["bf16 compiled"]["graphs"] == 1 and facts["bf16"]["graphs"] == 0
    assert facts["bf16 compiled"]["new graphs of half a batch"] >= 1
