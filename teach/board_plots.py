"""The machines of a class in one picture: speed-up against ranks, and the race."""

from course.plots.labels import BESIDE_AN_END, write_beside
from course.plots.style import COLOURS, GREY, bar_style, head, line_key, line_style, name_rows, ticks

FEW = 6  # machines whose lines have colours and labels of their own


def room(table, median, ax, title="Speed-up of the machines in this room", source="live"):
    """A line a machine, from board.speedups: columns label, named, ranks, speedup and machine.

    `median`: {ranks: speed-up} of the class. Of many machines the fastest, the slowest and the named ones have labels.
    """
    table = as_text(table)
    machines = [rows.sort_values("ranks") for _, rows in table.groupby("label", sort=False)]
    last = {rows["label"].iloc[0]: rows["speedup"].iloc[-1] for rows in machines}
    shown = set(last) if len(machines) <= FEW else {max(last, key=last.get), min(last, key=last.get)}
    ends, number = [], 0
    for rows in machines:
        label, machine = rows["label"].iloc[0], rows["machine"].iloc[0]
        if label in shown or rows["named"].iloc[0]:
            style = line_style(number, source)
            ends.append((rows["ranks"].iloc[-1], rows["speedup"].iloc[-1],
                         f"{label}: {machine.partition(',')[0]}", style["color"]))
            number += 1
        else:
            style = {"color": GREY, "linewidth": 1, "alpha": 0.6}
        ax.plot(rows["ranks"], rows["speedup"], **style)
    sizes = sorted(table["ranks"].unique())
    ax.plot(sizes, sizes, "--", color=GREY, linewidth=2, zorder=1)
    if median:
        ax.plot(list(median), list(median.values()), color="black", linewidth=6, zorder=2.5)
        ends.append((max(median), median[max(median)], f"median: {median[max(median)]:.2f}", "#000000"))
    ticks(ax, sizes)
    top = 1.25 * max(1, table["speedup"].max())
    ax.set(xlabel="world size (ranks)", ylabel="times as fast as one rank", ylim=(0, top),
           xlim=(sizes[0] - 0.3, sizes[-1] + 0.3))
    head(ax, title, columns=2, key=[line_key("ideal", color=GREY, linestyle="--", linewidth=2),
                                    *([line_key("the class's median", color="black", linewidth=6)] if median else [])])
    write_beside(ax, ends, BESIDE_AN_END)
    return ax


def race(table, ax, goal, source="live", most=10):
    """Seconds of training until the goal, a bar a run, the fastest above, from board.race."""
    table = as_text(table)
    for y, row in enumerate(table.head(most).itertuples()):
        ax.barh(y, row.seconds, height=0.6, **bar_style(source, COLOURS[0] if y else COLOURS[2]))
        ranks = f"{row.ranks} rank{'s' if row.ranks > 1 else ''}"
        ax.text(row.seconds, y, f"  {row.seconds:.1f} s, {ranks}", va="center", fontweight="bold")
    name_rows(ax, list(table["label"].head(most)))
    ax.margins(x=0.3)
    ax.set_xlabel("seconds of training")
    head(ax, f"The race: {goal:.0%} of the test images right", key=[])
    return ax


def as_text(table):
    """The table with labels as learners wrote them: matplotlib takes what stands between two $ for a formula."""
    return table.assign(label=table["label"].str.replace("$", r"\$", regex=False))
