"""Where the words of lesson 00 lead, and which ways to train it says this machine can go."""

import re
from pathlib import Path
from types import SimpleNamespace

import jupytext
import matplotlib.pyplot as plt
import pytest

from lessons.l00_start_here import show

TWINS = Path(__file__).parents[2] / "notebooks/text"


@pytest.mark.parametrize("word", show.WORDS)
def test_a_word_leads_to_a_lesson_that_uses_it(word):
    number, _ = show.WORDS[word]
    (twin,) = TWINS.glob(f"{number}_*.py")
    text = "\n".join(cell.source for cell in jupytext.read(twin).cells if cell.cell_type == "markdown")
    assert re.search(rf"\b{word.replace(' ', '[ _-]')}(?:e?s)?\b", text, re.IGNORECASE)


def test_the_picture_of_two_commands_has_its_mark_where_the_function_says():
    one, many = (SimpleNamespace(label=label, once=once, epoch=epoch)
                 for label, once, epoch in (("one process", 3, 2), ("2 ranks", 7, 1.1)))
    ax = show.paid_back(one, many, 5, "your")
    assert ax.get_title("left") == "2 ranks are done earlier from 5 epochs on (your function)"
    assert [list(line.get_ydata()) for line in ax.lines[:2]] == [[3, 23], [7, 18]]
    assert list(ax.lines[2].get_xdata()) == [5, 5] and len(show.paid_back(one, many, None, "our").lines) == 2


@pytest.mark.parametrize(("gpus", "nodes", "lacks", "filled"), [
    (0, 1, ["needs 2 GPUs", "needs 2 machines"], [True, False, True, False, True]),
    (2, 2, [], [True] * 5),
])
def test_a_way_that_this_machine_cannot_go_is_hollow_and_says_what_it_lacks(gpus, nodes, lacks, filled):
    ax = show.ways(gpus, nodes)
    assert [text.get_text() for text in ax.texts if text.get_text().startswith("needs")] == lacks
    assert [box.get_facecolor() != (1, 1, 1, 1) for box in ax.patches if box.get_width() == show.WIDTH] == filled
    plt.close(ax.figure)
