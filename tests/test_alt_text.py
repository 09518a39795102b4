"""Pictures in words. That each picture of the course has some, and names its axes, is seen in conftest.py."""

import base64
import io

import matplotlib as mpl
import matplotlib.pyplot as plt
import nbformat
import pandas as pd
import pytest
from nbconvert.preprocessors import ExecutePreprocessor
from PIL import Image

import layout
from course import alt_text, plots, twins
from lessons.l02_data_parallel import pictures as l02_pictures
from lessons.l04_collectives import pictures as l04_pictures
from lessons.l05_distributed_sampler import pictures as l05_pictures
from lessons.l09_large_batch import show as l09_show
from lessons.l11_fault_tolerance import pictures as l11_pictures
from lessons.l14_make_it_faster import pictures as l14_pictures
from tests import runner

mpl.use("Agg")


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def test_lines_are_told_with_their_axes_and_the_names_at_their_ends():
    table = pd.DataFrame({"label": ["one", "one", "two", "two"], "path": ["1", "1", "2", "2"], "epoch": [0, 1, 0, 1],
                          "loss": [2.0, 1.5, 2.0, 1.0], "synthetic": True})
    assert alt_text.describe(plots.loss_by_epoch(table).figure) == (
        "Training loss by epoch. SYNTHETIC DATA. 2 lines and points; loss (cross-entropy) against epoch. "
        "Written in it: one, two.")


def test_a_row_is_told_with_what_stands_in_it_and_a_part_by_the_keys_word_for_its_colour():
    assert alt_text.describe(l02_pictures.memory([{"weights": 3e6, "outputs": 30e6}, {"weights": 8e6}]).figure
                             ).startswith("What each device holds. Horizontal bars; across: MB (million bytes). Rows: "
                                          "device 0 (weights: 3; outputs: 30; 33.0 MB); device 1 (weights: 8; 8.0 MB).")
    held = {"states": [{"label": "before", "cells": [[1, 2], [10, 20]]}, {"label": "after", "cells": [[11, 22]] * 2}]}
    assert alt_text.describe(l04_pictures.before_after(held, "all_reduce")) == (
        "all_reduce. 2 panels: before, after. Coloured boxes. Rows: before: rank 0 (1, 2); rank 1 (10, 20); "
        "after: rank 0 (11, 22); rank 1 (11, 22).")


def test_panels_share_what_they_have_in_common():
    (left, right) = plt.subplots(1, 2, sharey=True)[1]
    for ax in (left, right):
        ax.plot([1, 2], [3, 4])
    left.set(title="by update", xlabel="updates", ylabel="loss")
    right.set(title="by time", xlabel="seconds", xscale="log")
    assert alt_text.describe(left.figure) == ("2 panels: by update, by time. A line; loss against updates, then loss "
                                              "against seconds; x axis logarithmic.")


def test_what_is_too_long_loses_numbers_first_then_names():
    def told(names):
        return alt_text.describe(l05_pictures.counts_map({f"way {n}": [1, 2, 1] for n in range(names)}).figure)

    assert "way 1 (once: 1×; more than once: 2×; once: 1×)" in told(2)
    assert "way 11. Key" in told(12) and "×" not in told(12)
    assert "and 88 more" in told(100) and all(len(told(names)) <= alt_text.LONGEST for names in (2, 12, 100))


def test_any_figure_has_some_words():
    assert alt_text.describe(plt.figure()) == "An empty picture."
    plt.pie([1, 2], labels=["a", "b"])
    assert alt_text.describe(plt.gcf()) == "Shapes. Written in it: a, b."
    plt.figure().add_subplot(projection="polar").scatter([1, 2], [1, 2])
    assert alt_text.describe(plt.gcf()) == "Points."
    plt.figure().suptitle("long " * 100)
    assert len(alt_text.describe(plt.gcf())) <= alt_text.LONGEST


def log(*moments):
    """Of a run with an epoch at each of the seconds, as main.py writes it."""
    return [{"kind": "run", "time": 0.0, "world_size": 2}] + [
        {"kind": "epoch", "epoch": number, "time": moment, "loss": 2 - number / 4} for number, moment in
        enumerate(moments)]


def test_pictures_that_no_other_test_draws():
    whole, again = log(1.0, 2.0, 3.0), log(1.0, 5.0, 6.0)
    again.insert(2, {"kind": "restart", "time": 4.0, "world_size": 1})
    box = {"step": "1 scatter", "device": 0, "has": "64 rows", "source": []}
    runs = pd.DataFrame({"label": "a", "path": "a", "epoch": [0, 1], "samples": 100, "world_size": 1, "batch_size": 10,
                         "seconds": 1.0, "val_accuracy": 0.5})
    drawn = [l11_pictures.killed(whole, again, 1, 1, 1.5)[0],
             l11_pictures.elastic(again, {"node1 is killed": 2.0}, True),
             l11_pictures.interval(0.02, 10_000, 10, 20),
             l11_pictures.stored([{"name": "fc1.weight", "file": "__0_0", "bytes": 200_000, "first": None}]),
             l02_pictures.steps([box, box | {"device": 1, "source": [0]}]), l09_show.for_the_same(runs)[0]]
    profile = l14_pictures.profiles({name: [{"name": "aten::add", "ms": 1.0}] for name in ("LeNet", "ResNet")})
    words = [alt_text.describe(figure) for figure in (*(ax.figure for ax in drawn), profile)]
    assert all(".." not in each and len(each) > 80 for each in words)  # what they say of their axes: conftest.py
    assert "Rows: __0_0 (LeNet: fc1.weight)" in words[3] and "then test accuracy (%) against updates" in words[5]


CELLS = ["import sys; sys.path.insert(0, '.')\nfrom course import lesson\nimport matplotlib.pyplot as plt{}",
         "plt.figure(figsize=(3, 2), facecolor='none')\nplt.plot([1, 2])\nplt.title('mine')\nplt.show()",
         "plt.plot([1, 2])[0].figure",
         "from course import plots\nplots.picture(plt.figure())"]


def with_pictures(notebook):
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
    return [output for output in outputs if "image/png" in output.get("data", {})]


@pytest.fixture(scope="module")
def shown():
    """The outputs with pictures of a notebook that has begun as lessons do, and of one that has not."""
    def pictures(begun):
        cells = [nbformat.v4.new_code_cell(code.format("\nlesson.begin()" if begun else "")) for code in CELLS]
        notebook = nbformat.v4.new_notebook(cells=cells)
        ExecutePreprocessor(timeout=runner.LIMIT, kernel_name="python3").preprocess(
            notebook, {"metadata": {"path": str(runner.ROOT)}})
        return notebook, with_pictures(notebook)

    return pictures(begun=True), pictures(begun=False)


def test_what_a_lesson_shows_has_words_and_is_else_as_it_was(shown):
    (notebook, told), (_, silent) = shown
    words = [output.metadata["image/png"].pop("alt") for output in told]
    assert words[0] == "mine. A line." and words[-1] == "An empty picture." and len(words) == len(silent) == 4
    assert [output.metadata.get("needs_background") for output in told] == ["light", None, None, None]
    for with_words, without in zip(told[:-1], silent[:-1], strict=True):
        assert with_words.data == without.data
        assert with_words.metadata == without.metadata | {"image/png": {}}
    for output, alt in zip(told, words, strict=True):
        output.metadata["image/png"]["alt"] = alt


def test_words_stay_in_the_committed_notebook_and_get_into_its_page(shown, tmp_path, monkeypatch):
    notebook = shown[0][0]
    monkeypatch.chdir(tmp_path)
    twins.TWINS.mkdir(parents=True)
    twins.jupytext.write(notebook, twins.TWINS / "a.py", fmt="py:percent")
    twin = twins.jupytext.read(twins.TWINS / "a.py")
    twins.commit(twins.as_committed(notebook, twin), "a")
    for built in (nbformat.read(twins.NOTEBOOKS / "a.ipynb", as_version=4), twins.build("a")):
        outputs = with_pictures(built)
        assert outputs[0].metadata == {"needs_background": "light", "image/png": {"alt": "mine. A line."}}
        assert [output.metadata["image/png"]["alt"] for output in outputs][-1] == "An empty picture."
        for output in outputs:
            Image.open(io.BytesIO(base64.b64decode(output.data["image/png"]))).verify()
    cells = [each for cell in built.cells if cell.cell_type == "code" for each in layout.one_picture_each(cell)]
    alts = [cell.metadata["mystnb"]["image"]["alt"] for cell in cells if "mystnb" in cell.metadata]
    assert len(alts) == 4 and alts[0] == "mine. A line.", "myst-nb has one text a cell, so each picture a cell"
