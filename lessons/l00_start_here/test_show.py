"""What lesson 00 says of a machine and of two runs; where its words and lessons lead."""

import re
from pathlib import Path

import jupytext
import pandas as pd
import pytest

from lessons.l00_start_here import show

TWINS = sorted((Path(__file__).parents[2] / "notebooks/text").glob("*.py"))
PAGES = {f"{path.stem}.ipynb": jupytext.read(path) for path in TWINS}


@pytest.mark.parametrize("word", show.WORDS)
def test_a_word_leads_to_a_lesson_that_uses_it(word):
    number, _ = show.WORDS[word]
    (page,) = [page for file, page in PAGES.items() if file.startswith(number)]
    text = "\n".join(cell.source for cell in page.cells if cell.cell_type == "markdown")
    assert re.search(rf"\b{word.replace(' ', '[ _-]')}(?:e?s)?\b", text, re.IGNORECASE)


def test_words_and_lessons_are_linked():
    links = {row["lesson"] for row in show.words(list(PAGES))}
    assert "[03](03_processes_and_ranks.ipynb)" in links
    rows = show.lessons(PAGES)
    assert rows[0]["lesson"] == "[00 · Start here](00_start_here.ipynb)" and len(rows) == len(TWINS)
    assert rows[0]["its question"].startswith("How much faster") and rows[0]["for you"] == "35 min"
    assert all(row["its question"] and "**The question" not in row["its question"] for row in rows)


def test_gpus_are_counted_by_name_and_synthetic_images_are_called_so():
    rows = show.machine(8, ["A100", "A100", "T4"], "2.14", ["gloo", "nccl"], ("synthetic", 50_000), 10_000)
    found = {row["what"]: row["on this machine"] for row in rows}
    assert found["GPUs"] == "2 × A100, 1 × T4" and "SYNTHETIC" in found["images"]
    rows = show.machine(8, [], "2.14", ["gloo"], ("cifar10", 50_000), 10_000)
    assert rows[1]["on this machine"] == "none" and "SYNTHETIC" not in rows[-1]["on this machine"]


def test_two_runs_and_what_was_predicted():
    table = pd.DataFrame({"label": ["one process", "2 ranks"], "source": "live", "machine": "x", "world_size": [1, 2],
                          "speedup": [1.0, 1.5], "images_per_second": [1000.0, 1500.0], "batch_size": 64, "epochs": 4,
                          "loss": [1.4, 1.5], "oversubscribed": False, "cores": 2, "status": "completed",
                          "synthetic": False})
    rows = show.two_runs(table, 10_000)
    assert [(row["images per step"], row["steps per epoch"]) for row in rows] == [(64, 157), (128, 79)]
    assert show.beside_prediction(table, 2, None) is table
    drawn = show.beside_prediction(table, 2, 2)
    assert drawn.iloc[-1][["source", "speedup"]].tolist() == ["predicted", 2.0] and len(drawn) == 3


@pytest.mark.parametrize(("ranks", "devices", "said"), [
    (2, 2, "Each of the 2 ranks has a core of its own: 2 times"), (4, 2, "4 ranks take turns on 2 cores: 2 times"),
    (2, 1, "2 ranks take turns on 1 core: 1 times")])
def test_the_most_to_hope_for(ranks, devices, said):
    assert show.crowded(ranks, devices, "core").startswith(said)


def test_ranks_that_share_a_gpu_may_fill_its_gaps():
    assert show.crowded(2, 1, "GPU") == "2 ranks share 1 GPU: they can gain only what one process leaves idle."
    assert show.crowded(2, 2, "GPU").startswith("Each of the 2 ranks has a GPU of its own")


@pytest.mark.parametrize(("gpus", "nodes", "lacking"), [(0, 1, {"02", "10"}), (2, 1, {"10"}), (2, 2, set())])
def test_which_ways_this_machine_can_go(gpus, nodes, lacking):
    assert {row["lesson"] for row in show.ways(gpus, nodes) if row["lacks"]} == lacking
