"""Lesson 06: its pictures and tables."""

from statistics import median

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from course.compare import ratio
from course.dial import bits, words
from course.one_process import Answer, distances
from course.plots.labels import BESIDE_AN_END, write_beside
from course.plots.style import COLOURS, GREY, bare, colour_of, head, line_style, stacked

LR = 0.1  # of the update in the drawing
IMAGES = [(1.0, 4.0), (2.0, 2.5)]  # of each rank: (image, what the model is to answer)


def one_step() -> Axes:
    """An update of DDP on two ranks, drawn: a model of one weight w, whose answer is w times the image."""
    gradients = []
    for image, wanted in IMAGES:
        weight = torch.tensor(1.0, requires_grad=True)
        (weight * image - wanted).square().backward()
        gradients.append(weight.grad.item())
    mean = sum(gradients) / len(gradients)
    ax = plt.subplots(figsize=(14, 4.6))[1]
    shared, places = "#CFE4F2", [0, 2.3, 4.9, 8.2, 10.6]
    for rank, ((image, wanted), gradient) in enumerate(zip(IMAGES, gradients, strict=True)):
        own = ["#FBE3CF", "#CFEBE1"][rank]
        boxes = [("w = 1", shared), (f"image {image:g}\nwanted {wanted:g}", own), (f"gradient {gradient:g}", own),
                 (f"mean {mean:g}", shared), (f"w = {1 - LR * mean:g}", shared)]
        for place, (text, colour) in zip(places, boxes, strict=True):
            ax.text(place, -rank, text.replace("-", "−"), ha="center", va="center", fontsize=17, fontweight="bold",
                    bbox={"boxstyle": "round,pad=0.5", "facecolor": colour, "edgecolor": GREY})
        for start, end in zip(places, places[1:], strict=False):
            if start != places[2]:
                ax.annotate("", (end - 0.85, -rank), (start + 0.85, -rank),
                            arrowprops={"arrowstyle": "-|>", "color": GREY, "linewidth": 2})
        for other in range(2):
            ax.annotate("", (places[3] - 0.7, -rank), (places[2] + 0.95, -other),
                        arrowprops={"arrowstyle": "-|>", "color": COLOURS[1], "linewidth": 3})
    titles = ["same\nweights", "own\nimages", "own\ngradient", "same\nmean", "same\nweights"]
    for place, title in zip([*places, 6.5], [*titles, "all-reduce"], strict=True):
        ax.text(place, 0.5, title, ha="center", va="bottom", fontsize=17, color=COLOURS[1] if place == 6.5 else "black")
    bare(ax)
    ax.set(xlim=(-0.9, 11.5), ylim=(-1.45, 1.05), xticks=[], yticks=[0, -1], yticklabels=["rank 0", "rank 1"])
    ax.set_title("One update on two ranks", pad=12)
    return ax


def proof(answers: dict[str, tuple[Answer, Answer]]) -> Axes:
    """{name: (one process, several ranks)}: after each update, how far the weights of the farthest rank are from those
    of one process: the norm of the difference of all weights, in the norm of the weights."""
    ax = plt.subplots(figsize=(11, 5.5))[1]
    notes = []
    for number, (name, (one, many)) in enumerate(answers.items()):
        far = distances(one, many)
        ax.plot(range(1, len(far) + 1), far, **line_style(number))
        notes.append((len(far), far[-1], name, colour_of(number)))
    ax.set(yscale="log", xlabel="update", ylabel="distance / norm of the weights", ylim=(1e-18, 10))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.axhline(torch.finfo(torch.float64).eps, color=GREY, linewidth=1.5, linestyle=":")
    ax.text(1, 1.5 * torch.finfo(torch.float64).eps, "the last digit of a float64", color=GREY, va="bottom")
    head(ax, "How far the ranks are from one process", key=[])
    write_beside(ax, notes, BESIDE_AN_END)
    return ax


def how_far(one: Answer, many: Answer) -> str:
    """After the last update: "not at all", "in the last digits" or "further"."""
    far = distances(one, many)[-1]
    return "not at all" if not far else "in the last digits" if far < 1e-12 else "further"


WAITED = "communication that the update waits for"
PARTS = {"computing": COLOURS[5], WAITED: COLOURS[1]}


def names(measured: dict) -> dict[str, str]:
    """{way: what a row says}, with whose class it is."""
    words = {"alone": "no communication", "step 2": "step 2, a message per parameter", "step 3": "step 3, one message",
             "step 4": "step 4, buckets during backward", "DDP": "DDP", "DDP, small buckets": "DDP, buckets of 64 KiB"}
    whose = measured["whose"]
    return {way: f"{text} ({whose[way]})" if way in whose else text for way, text in words.items()}


def ladder(measured: dict) -> list[Axes]:
    """A panel for each rate, a bar for each way: the milliseconds of an update, and which of them `alone` lacks."""
    rates, labels = measured["rounds"], names(measured)
    axes = plt.subplots(len(rates), 1, figsize=(13, 1.3 + 3.6 * len(rates)), sharex=True, squeeze=False)[1][:, 0]
    for ax, (rate, rounds) in zip(axes, rates.items(), strict=True):
        medians = {way: 1000 * median(rounds[way]) for way in labels}
        bars = [{"computing": min(each, medians["alone"]), WAITED: max(0, each - medians["alone"])}
                for each in medians.values()]
        key = stacked(ax, list(labels.values()), bars, PARTS, "milliseconds per update" if ax is axes[-1] else "", "ms")
        title = words(rate)
        if rate != "none":
            title += f": sending all gradients takes {32e3 * measured['parameters'] / bits(rate):.0f} ms"  # of float32
        head(ax, title, key=key if ax is axes[0] else [], columns=2)
    return list(axes)


def table(measured: dict) -> list[dict]:
    """A row for each way: its all-reduces, and the milliseconds of an update at each rate."""
    return [{"way": label, "all-reduces per update": measured["all_reduces"][way],
             **{f"ms at {words(rate)}" if rate != "none" else "ms, no limit": f"{1000 * median(rounds[way]):.1f}"
                for rate, rounds in measured["rounds"].items()}} for way, label in names(measured).items()]


def where_faster(measured: dict, way: str, than: str) -> list[str]:
    """The rates of the networks on which it is, significantly."""
    compared = {rate: ratio(rounds[way], rounds[than]) for rate, rounds in measured["rounds"].items()}
    return [rate for rate, each in compared.items() if each.significant and each.high < 1]


def claims(measured: dict) -> list[dict]:
    """What each step of the ladder changes: a row for each, a column for each rate."""
    steps = [("one message ÷ a message per parameter", "step 3", "step 2"),
             ("sent during backward ÷ one message", "step 4", "step 3"),
             ("DDP ÷ one message", "DDP", "step 3"), ("DDP, small buckets ÷ DDP", "DDP, small buckets", "DDP")]
    return [{"time ÷ time": text, **{words(rate): str(ratio(rounds[way], rounds[than]))
                                     for rate, rounds in measured["rounds"].items()}} for text, way, than in steps]
