"""Lesson 14: where a step's time goes, what each change was predicted to gain and gained, and what it did to the
training.

`run` is the JSON of lessons/l14_make_it_faster/step_profile.py, `measured` that of compare_changes.py. Predictions and
verdicts are those of gains.py.
"""

import math
from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course.compare import NOT_SHOWN
from course.plots.labels import BESIDE_AN_END, write_beside
from course.plots.style import (
    COLOURS,
    GREY,
    LINES,
    PALE,
    PHASES,
    PREDICTED,
    handles,
    key_below,
    line_key,
    name_rows,
    ticks,
)
from course.predict.fit import powersgd_values
from lessons.l14_make_it_faster import gains

NAMES = {"lenet": "LeNet", "resnet": "small ResNet", "wide": "three wide layers"}
PARTS = {  # {part of a step: is an operator of the profile one of it?}
    "convolution": lambda name: "conv" in name,
    "fully connected": lambda name: gains.is_product(name) and "conv" not in name,
    "optimizer": lambda name: "adam" in name.lower() or name == "update",
}
ROUNDING = 1e-4  # gradients nearer than this differ in the order of their sums
IN_MAIN = {  # {change: where main.py has it}
    "whole-batches": "always", "fused": "always", "bucket-view": "always",
    "threads": "`OMP_NUM_THREADS`", "batch": "`--batch-size`", "bf16": "`--bf16`",
    "channels-last": "on a CPU; elsewhere `--channels-last`",
    "compile": "`--compile`", "small-buckets": "`--bucket-cap-mb`", "bf16-hook": "`--comm-hook bf16`",
    "powersgd": "no: another gradient", "accumulate": "no: it is a larger batch",
}
KINDS = {"convolution or matrix product": PHASES["backward"], "other operator": PHASES["forward"],
         "between operators": COLOURS[3]}
TICKS = (0.4, 0.5, 0.6, 0.8, 1, 1.25, 1.6, 2, 2.5, 3)

# ---------------------------------------------------------------------------------------------- where the time goes


def under_profiler(profile: dict) -> float:
    """Milliseconds of a profiled step."""
    return sum(profile["medians"].get(name, 0) for name in (*gains.LABELS, "wait"))


def shares(profile: dict) -> dict[str, float]:
    """{part: share of a profiled step}, everything else last; they add up to 1."""
    total = sum(row["ms"] for row in profile["operators"])
    parts = {"data": profile["medians"]["data"] / under_profiler(profile)}
    parts |= {part: sum(row["ms"] for row in profile["operators"] if holds(row["name"])) / total
              for part, holds in PARTS.items()}
    return parts | {"everything else": 1 - sum(parts.values())}


def milliseconds(profile: dict) -> dict[str, float]:
    """{part: ms of a step without the profiler}: the same shares."""
    return {part: share * gains.step(profile) for part, share in shares(profile).items()}


def times(run: dict) -> list[dict]:
    """A row a model: a step's ms without the profiler, before and after the profiled steps, and the parts of these."""
    rows = []
    for model, profile in run["models"].items():
        low, high = min(profile["halves"]), max(profile["halves"])
        parts = (*gains.LABELS, "wait", "all-reduce") if run["world_size"] > 1 else ()
        rows.append({"ms of a step": NAMES[model], "before": f"{profile['halves'][0]:.1f}",
                     "profiled": f"{under_profiler(profile):.1f}", "after": f"{profile['halves'][1]:.1f}",
                     **{part: f"{profile['medians'][part]:.1f}" for part in parts}})
        if 1.2 * under_profiler(profile) < low:  # a profiler makes no step faster, but a sum of medians may be lower
            rows[-1]["ms of a step"] += " (**disturbed**: no profiler makes a step faster. Run it again)"
        elif high > 1.25 * low:
            rows[-1]["ms of a step"] += " (**disturbed**: the machine changed its speed. Run it again)"
    return rows


def waiting(run: dict, model: str) -> float:
    """Percent of a profiled step in which a rank has nothing left to compute, the median."""
    profile = run["models"][model]
    return 100 * profile["medians"]["wait"] / under_profiler(profile)


def messages(run: dict) -> list[dict]:
    """A row for each model and format: what a step sends, and how long an all-reduce of so much takes alone."""
    rows = []
    for model, profile in run["models"].items():
        size, ms = profile["gradient_bytes"], profile["all_reduce"]
        rows += [{"model": NAMES[model], "sent as": name, "KiB a step": f"{size * part / 1024:,.0f}",
                  "all-reduce alone, ms": f"{ms[name]:.2f}", "of float32's time": f"{ms[name] / ms['float32']:.0%}"}
                 for name, part in (("float32", 1), ("bf16", 0.5))]
        rows.append({"model": NAMES[model], "sent as": "PowerSGD, one column",
                     "KiB a step": f"{4 * powersgd_values(profile['shapes'], 1) / 1024:,.0f}",
                     "all-reduce alone, ms": "–", "of float32's time": "–"})
    return rows

# ---------------------------------------------------------------------------------------------- changes


def predicted(run: dict, model: str, name: str) -> tuple[float | None, str]:
    """(gain, how it was computed), from the profile alone."""
    return gains.predict(name, run["models"][model] | {"world_size": run["world_size"], "cores": run["cores"]})


def predictions(run: dict, changes: dict, names: str) -> list[dict]:
    """A row for each change: the predicted gain of each model, and how it was computed."""
    rows = []
    for name in names.split()[1:]:
        of_models = {model: predicted(run, model, name) for model in run["models"]}
        rows.append({"change": changes[name].text,
                     **{NAMES[model]: f"{gain:.2f}" if gain else "–" for model, (gain, _) in of_models.items()},
                     "how": next(iter(of_models.values()))[1]})
    return rows


def judged(measured: dict, run: dict, changes: dict, names: list[str], bounds: dict | None = None
           ) -> dict[str, pd.DataFrame]:
    """{model's name: table with the verdict on each change}, as `compared` draws it.

    A learner's changes, which are none of `changes`, come last; `bounds` has what they were predicted to gain: {change:
    gain}.
    """
    tables, texts = {}, {name: change.text for name, change in changes.items()}
    texts |= {name: row["text"] for of_model in measured.values() for name, row in of_model.items() if "text" in row}
    names = [*names, *(name for name in texts if name not in changes)]
    for model, of_model in measured.items():
        rows = []
        for name in names:
            row = of_model.get(name, {"error": "not tried"})
            verdict = "did not run" if name in of_model else "not tried"
            if "gains" in row:
                found = gains.against(row, of_model["nothing"])
                verdict = "the control" if name == "nothing" else gains.verdict(found)
                row = row | {"gain": found.median, "low": found.low, "high": found.high}
            expected = predicted(run, model, name)[0] if name in changes else (bounds or {}).get(name)
            rows.append({"change": name, "predicted": expected, **row, "text": texts[name], "verdict": verdict})
        tables[NAMES[model]] = pd.DataFrame(rows, columns=[
            "change", "text", "predicted", "gain", "low", "high", "error", "verdict", "losses", "gradient_off"])
    return tables


def gain(tables: dict, model: str, name: str) -> float | str:
    """The measured gain of a change; or, where there is none, its verdict."""
    row = tables[NAMES[model]].set_index("change").loc[name]
    return row["verdict"] if pd.isna(row["gain"]) else row["gain"]


def of_the_learner(table: pd.DataFrame, part: str | None, most: float | None, whose: str) -> str:
    """The change of a learner, or ours in its place, beside the bound of the part that it was to make shorter.

    `whose`: the author of the bound. Without a part: what the change did, and no bound.
    """
    row = table.set_index("change").loc["my_change"]
    if pd.isna(row["gain"]):
        return f"**{row['text']}** did not run: {row['error']}"
    limit = (f" If `{part}` took no time the step would be {most:.2f} times as fast: {whose} bound." if part else
             " Name its part in `my_part`, and its bound stands here.")
    return (f"**{row['text']}**: {row['gain']:.2f} ({row['low']:.2f} to {row['high']:.2f}) times as fast. With nothing "
            f"changed: {table['low'][0]:.2f} to {table['high'][0]:.2f}. Verdict: **{row['verdict']}**.{limit}"
            + f" {NOT_SHOWN}" * (row["text"].startswith("ours") and row["verdict"] == "no significant difference"))


def numerics(*results: dict) -> list[dict]:
    """A row for each change whose first gradient differs by more than rounding, and for the learner's; then one for all
    others.

    `results`: tables by model, as `judged` gives them.
    """
    rows, others = [], []
    for model, table in [pair for tables in results for pair in tables.items()]:
        for row in table[table["losses"].notna() & (table["change"] != "nothing")].itertuples():
            if row.gradient_off > ROUNDING or row.change.startswith("my_"):
                rows.append({"change": row.text, "model": model,
                             "first gradient is off by": f"{100 * row.gradient_off:.2g} %",
                             "loss without it": f"{row.losses[0]:.3f}", "with it": f"{row.losses[1]:.3f}"})
            else:
                others.append(row.gradient_off)
    most = f"{100 * max(others):.2g} % at most" if others else "–"
    return [*rows, {"change": "all others here", "model": "–", "first gradient is off by": most,
                    "loss without it": "–", "with it": "–"}]


def decided(changes: dict, *results: dict) -> list[dict]:
    """A row for each change: how often it paid and cost in `results`, tables by model; and where main.py has it."""
    tables = pd.concat([table for tables in results for table in tables.values()])
    verdicts, rows = tables.groupby("change")["verdict"].agg(list), []
    for name, place in IN_MAIN.items():
        if name in verdicts:
            tried = [verdict for verdict in verdicts[name] if verdict not in ("did not run", "not tried")]
            rows.append({"change": changes[name].text, "tried": len(tried), "paid": tried.count("pays"),
                         "cost": tried.count("costs"), "in main.py": place})
    return rows

# ---------------------------------------------------------------------------------------------- pictures


def operators(rows: list[dict], ax: Axes, most: int = 8) -> Axes:
    """A bar for each of the `most` operators with the largest self time, and one for everything else; `rows` as
    step_profile.py writes them."""
    total, names, colours = sum(row["ms"] for row in rows), [], []
    for name in (row["name"] for row in rows[:most]):
        kind = ("convolution or matrix product" if gains.is_product(name) else
                "other operator" if gains.is_operator(name) else "between operators")
        colours.append(KINDS[kind])
        short = name.removeprefix("aten::").split("#")[-1].replace("autograd::engine::evaluate_function: ", "engine: ")
        names.append(f"{name} (between operators)" if name in gains.LABELS else short[:38])
    ms = [row["ms"] for row in rows[:most]]
    if rest := rows[most:]:
        names.append(f"everything else ({len(rest)} names)")
        ms.append(sum(row["ms"] for row in rest))
        colours.append(GREY)
    bars = ax.barh(range(len(names)), ms, height=0.7, color=colours)
    ax.bar_label(bars, [f"{time / total:.0%}" for time in ms], padding=10, fontweight="bold")
    name_rows(ax, names)
    ax.margins(x=0.12)
    ax.set_xlabel("milliseconds of self time in a step")
    return ax


def profiles(models: dict) -> Figure:
    """{title: rows of `operators`}: side by side, with one key."""
    fig, axes = plt.subplots(1, len(models), figsize=(20, 7))
    for ax, (title, rows) in zip(axes, models.items(), strict=True):
        operators(rows, ax).set_title(title)
    key_below(fig, KINDS)
    return fig


def bounds(bound: Callable, profiles: dict, whose: str) -> Figure:
    """{model: {part: ms}}, side by side: how many times as fast the step becomes when a part becomes up to 64 times as
    fast, as `bound(profile, part, times)` says. `whose`: "your" or "our"."""
    fig, axes = plt.subplots(1, len(profiles), figsize=(20, 7), sharey=True)
    times, notes = np.geomspace(1, 64, 49), []
    for ax, (model, profile) in zip(axes, profiles.items(), strict=True):
        for part, colour in zip(profile, COLOURS, strict=False):
            curve = [bound(profile, part, k) for k in times]
            ax.plot(times, curve, color=colour, linestyle=LINES["predicted"])
            text = f"{part}: at most {bound(profile, part, math.inf):.2f}×"
            notes.append((ax, (times[-1], curve[-1], text, colour)))
        ax.set(xscale="log", xlabel="how many times as fast one part becomes", title=f"{model}: {whose} bound")
        ticks(ax, [1, 2, 4, 8, 16, 32, 64])
    axes[0].set_ylabel("times as fast: the step")
    for ax in axes:  # now that the axes have their limits
        write_beside(ax, [note for of, note in notes if of is ax], BESIDE_AN_END)
    return fig


def limits(*tables: pd.DataFrame) -> tuple[float, float]:
    """Limits of the axis that `changes` draws on: of the intervals, only the control's widens it."""
    marks = [0.8, 1.25]
    for table in tables:
        marks += [*table["gain"].dropna(), *table["predicted"].dropna(), table["low"][0], table["high"][0]]
    return max(min(marks) / 1.08, 0.4), min(max(marks) * 1.08, 3)


def changes(table: pd.DataFrame, ax: Axes, title: str, low: float, high: float) -> Axes:
    """A line a change: a hollow diamond predicted, a dot measured, with a line along its interval.

    Columns: `text`, `predicted` (or nothing), `gain`, `low`, `high`, `verdict`; `error` where it did not run. The first
    row is the control: the grey band covers its interval. The axis goes from `low` to `high`; a dot beyond stands at
    its edge, as a triangle.
    """
    ax.axvspan(table["low"][0], table["high"][0], color=PALE, zorder=0, linewidth=0)
    ax.axvline(1, color=GREY, linewidth=2, zorder=1)
    for y, row in table.iterrows():
        pays = row["verdict"] in ("pays", "costs")
        beside = {"va": "center", "transform": ax.get_yaxis_transform(), "color": "black" if pays else GREY}
        if pd.isna(row["gain"]):
            ax.text(1.03, y, row["verdict"], **beside)
            continue
        colour = COLOURS[0] if y else GREY
        ax.plot([row["low"], row["high"]], [y, y], color=colour, linewidth=5, alpha=0.6)
        mark = "<" if row["gain"] < low else ">" if row["gain"] > high else "o"
        ax.plot(min(max(row["gain"], low), high), y, mark, color=colour, markersize=12, clip_on=False)
        if pd.notna(row["predicted"]) and y:
            ax.plot(min(max(row["predicted"], low), high), y, clip_on=False, **PREDICTED)
        ax.text(1.03, y, f"{row['gain']:.2f}×" + (f" {row['verdict']}" if y else ""), **beside,
                fontweight="bold" if pays else "normal")
    name_rows(ax, table["text"])
    ax.set(xscale="log", xlabel="times as fast as without the change", title=title)
    ticks(ax, [value for value in TICKS if low <= value <= high])
    ax.set_xlim(low, high)
    return ax


def compared(tables: dict, title: str) -> Figure:
    """{model: table of `changes`}: side by side, with one key."""
    rows = max(map(len, tables.values()))
    fig, axes = plt.subplots(1, len(tables), figsize=(20, 3.2 + 0.62 * rows), sharey=True, squeeze=False)
    for ax, (name, table) in zip(axes[0], tables.items(), strict=True):
        changes(table, ax, f"{name}, {title}", *limits(*tables.values()))
    measured = line_key("measured: median, its interval", marker="o", color=COLOURS[0], markersize=12)
    key_below(fig, [line_key("predicted", **PREDICTED), measured, *handles({"interval with nothing changed": PALE})])
    return fig
