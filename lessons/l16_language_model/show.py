"""The tables and pictures of lesson 16."""

import re
from statistics import median

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from course.compare import ratio
from course.plots.style import COLOURS, GREY, head, line_key, line_style, name_rows

WORDS = {"alone": "one process", "never": "ranks that never talk", "ddp": "DDP", "each": "DDP without no_sync()",
         "fsdp": "FSDP2", "wrapper": "MyDDP"}
LINE = re.compile(r"update (\d+),(?: loss [\d.]+,)? val loss ([\d.]+)(?:, ([\d,]+) tokens/s)?")


def reports(printed: str) -> list[tuple[int, float]]:
    """(update, val loss) of each line that minimal_gpt.py, or a learner's program, has printed."""
    return [(int(update), float(loss)) for update, loss, _ in LINE.findall(printed)]


def written(printed: str, most: int = 240) -> str:
    """What the model wrote: all that follows the last report."""
    return printed.rpartition("tokens/s")[2].strip()[:most]


def learning(runs: dict[str, str], tokens: int, ax: Axes | None = None) -> Axes:
    """The val loss of each run, {name: what it printed}, over the tokens learnt from; `tokens` of an update."""
    ax = ax or plt.subplots(figsize=(11, 6))[1]
    styles = {name: line_style(number) | {"linewidth": 12 - 4 * number, "markersize": 16 - 4 * number}
              for number, name in enumerate(runs)}  # they lie upon each other: the later the thinner
    for name, printed in runs.items():
        updates, losses = zip(*reports(printed), strict=True)
        ax.plot([tokens * update / 1000 for update in updates], losses, **styles[name])
    ax.set(xlabel="tokens learnt from, thousands", ylabel="loss on the held-out text")
    head(ax, "The same tokens, the same loss", key=[line_key(name, **style) for name, style in styles.items()])
    return ax


def apart(one: str, other: str) -> float:
    """Largest difference between two runs' val losses."""
    mine, theirs = dict(reports(one)), dict(reports(other))
    return max(abs(mine[update] - theirs[update]) for update in mine.keys() & theirs.keys())


def operations(results: dict, layers: int = 2) -> float:
    """For a token, as nanoGPT counts them: 6 a parameter but for the position table, and 12 · layers · width · context
    for the attention (PaLM, 2204.02311, appendix B)."""
    width, context = results["width"], results["context"]
    return 6 * (results["parameters"] - width * context) + 12 * layers * width * context


def speeds(results: dict) -> list[dict]:
    """A row for each way: its tokens a second, beside one process's and the ceiling, its MFU, and what it sends."""
    rows, rounds = [], results["rounds"]
    for way, speed in rounds.items():
        peak = results["peak"]["alone" if way == "alone" else "all"]
        used = ratio([each * operations(results) for each in speed], peak)
        size, messages = results["sent"][way]
        rows.append({"": WORDS[way], "tokens/s": f"{median(speed):,.0f}",
                     "times one process": "1" if way == "alone" else str(ratio(speed, rounds["alone"])),
                     "of the ceiling": "–" if way in ("alone", "never") else str(ratio(speed, rounds["never"])),
                     "MFU": f"{used.median:.0%}", "sent an update": f"{size / 1e6:.2f} MB in {messages}",
                     "off": "–" if way in ("alone", "never") else f"{results['off'][way]:.0e}"})
    return rows


def under_ceiling(results: dict, ax: Axes | None = None) -> Axes:
    """A bar for each way's tokens a second, with a dot for each round, and the ceiling."""
    ax = ax or plt.subplots(figsize=(11, 5))[1]
    rounds = {way: speed for way, speed in results["rounds"].items() if way != "never"}
    never = results["rounds"]["never"]
    for row, speed in enumerate(rounds.values()):
        ax.barh(row, median(speed) / 1000, height=0.6, color=COLOURS[0])
        ax.plot([each / 1000 for each in speed], [row] * len(speed), "o", color=COLOURS[1], markersize=7)
    ax.axvspan(min(never) / 1000, max(never) / 1000, color=GREY, alpha=0.25)
    ax.axvline(median(never) / 1000, color="black")
    name_rows(ax, [WORDS[way] for way in rounds])
    ax.set_xlabel("thousand tokens a second")
    head(ax, "Tokens a second, and the ceiling", key=[
        line_key("ceiling: ranks that never talk", color="black"),
        line_key("a round", color=COLOURS[1], marker="o", linestyle="")], columns=2)
    return ax
