"""Lesson 10: what a run on several hosts printed, live or recorded, and the map of a job."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt

from course import processes
from course.hosts import where
from course.plots.style import COLOURS, GREY, PALE, head, write_in
from lessons.l10_launchers.who import FIVE, reports

RECORDED = Path("results/recorded/lessons")
OF_JOB = ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES")
OF_TASK = ("SLURM_PROCID", "SLURM_NODEID", "SLURM_STEP_NUM_TASKS")


def run(name: str, command: str, missing: str | None, keep: str = "epoch") -> tuple[str, str]:
    """(which run it is, the lines with `keep` that the command prints). Where something is missing, the recorded run.

    A live run leaves the lines in results/live/10_NAME.txt.
    """
    recorded = RECORDED / f"10_{name}.txt"
    if missing:
        return where(missing, recorded), recorded.read_text()
    lines = [line for line in processes.said(command, 200).splitlines() if re.search(keep, line)]
    Path(f"results/live/10_{name}.txt").write_text("\n".join(lines) + "\n")
    return where(None, recorded), "\n".join(lines)


MEETING = "has connected to|(?:group_rank|global_ranks|master_addr|master_port)="  # lines that meeting() reads
CONNECTED = re.compile(r"(\w+): .*has connected to \[(\w+)\]:(\d+)")
TOLD = re.compile(r"(\w+): .*\] +(\w+)=(.+)")


def meeting(log: str) -> list[dict]:
    """How the torchruns of several hosts met, and then their ranks: a row per event, in the order of the lines, from
    what PyTorch logs with TORCH_CPP_LOG_LEVEL=INFO LOGLEVEL=INFO. (Its C++ and its Python stamp other times.)"""
    told: dict[str, dict] = {}  # {host: what its torchrun has learned}
    rows = []
    for line in log.splitlines():
        if told_line := TOLD.match(line):
            host, name, value = told_line.groups()
            facts = told.setdefault(host, {})
            facts[name] = value
            if name == "global_ranks":  # the last of them
                rows.append((f"torchrun on {host}", f"learns that it is host number {facts['group_rank']}, its ranks "
                             f"are {value}, and they meet at {facts['master_addr']}:{facts['master_port']}"))
        elif connected := CONNECTED.match(line):
            host, listens, port = connected.groups()
            who = "a rank" if host in told else "torchrun"
            listening = ", where it listens itself" if who == "torchrun" and host == listens else ""
            rows.append((f"{who} on {host}", f"connects to {listens}:{port}{listening}"))
    return [{"": number, "who": who, "what": what} for number, (who, what) in enumerate(rows, 1)]


def mine_or_ours(exercise, file: str) -> tuple[str, str]:
    """(the learner's file, "your"), where the check has found it right; else (one with our solution, "our")."""
    if exercise.file:
        return exercise.file, "your"
    ours = Path("results/live", f"10_our_{Path(file).name}")
    ours.write_text(exercise.answer)
    return str(ours), "our"


def reports_of(job: str, by_slurm: Callable, missing: str | None) -> tuple[str, list[dict]]:
    """(which run it is, who.py's reports of all ranks) of a job file, run by Slurm, or recorded."""
    recorded = RECORDED / "10_map.json"
    if missing:
        return where(missing, recorded), json.loads(recorded.read_text())
    found, last = reports(by_slurm(Path(job).read_text()))
    if not found:
        raise RuntimeError(f"the job {job} started no rank: {last}")
    Path("results/live/10_map.json").write_text(json.dumps(found, indent=1) + "\n")
    return where(None, recorded), found


def given(environment: dict, names: tuple) -> str:
    """A line per variable, for a box; those that are not there are left out."""
    return "\n".join(f"{name}={environment[name]}" for name in names if name in environment)


def map_of(ranks: list[dict]) -> plt.Axes:
    """Who starts whom on which host, and which variables each gets: the boxes of a job that ran on two nodes."""
    ax = plt.subplots(figsize=(15, 9.5))[1]
    hosts = sorted({each["host"] for each in ranks})
    script = next(each["script"] for each in ranks if each["script"])
    width = 14 / len(hosts)

    def box(x, y, title, text, colour):
        write_in(ax, x, y, f"{title}\n{text}".strip(), colour, path_effects=None, fontsize=13.5, fontweight="normal",
                 bbox={"boxstyle": "round,pad=0.5", "facecolor": colour, "edgecolor": "none"}, zorder=3)

    def arrow(start, end, text="", style="-|>", line="-"):
        ax.annotate("", end, start, zorder=2, arrowprops={
            "arrowstyle": style, "color": GREY, "linewidth": 2.5, "linestyle": line})
        middle = [(a + b) / 2 for a, b in zip(start, end, strict=True)]
        if text:
            ax.text(*middle, text, fontsize=14, fontweight="bold", ha="center", va="center", zorder=4,
                    bbox={"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none"})

    centres = [width * (number + 0.5) for number in range(len(hosts))]
    for host, x in zip(hosts, centres, strict=True):
        ax.add_patch(plt.Rectangle((x - width / 2 + 0.15, 0), width - 0.3, 8.3, facecolor="none", edgecolor=PALE,
                                   linewidth=4))
        ax.text(x - width / 2 + 0.35, 7.85, host, fontsize=18, fontweight="bold", va="center")
    arrow((centres[0], 9.3), (centres[0], 7.6), "sbatch")
    box(centres[0], 9.4, "you, on the login node", script.get("SLURM_SUBMIT_HOST", ""), COLOURS[5])
    box(centres[0], 6.9, "the job file, on the first node", given(script, OF_JOB), COLOURS[4])
    for host, x in zip(hosts, centres, strict=True):
        of_host = [each for each in ranks if each["host"] == host]
        arrow((centres[0], 6.3), (x, 5.05), "srun")
        box(x, 4.4, f"torchrun, process {of_host[0]['parent']}", given(of_host[0]["launcher"], OF_TASK), COLOURS[2])
        for number, each in enumerate(of_host):
            place = x + width * ((number + 0.5) / len(of_host) - 0.5) * 0.86
            arrow((x, 3.9), (place, 2.25), "torchrun")
            box(place, 1.3, f"rank, process {each['pid']}", given(each["rank"], FIVE), COLOURS[0])
    meet = [word for word in ranks[0]["asked"] if "endpoint" in word or "master-addr" in word]
    arrow((centres[0] + 1.35, 4.4), (centres[-1] - 1.35, 4.4), "rendezvous\n" + " ".join(meet), "<->", ":")
    ax.set_xlim(-0.1, 14.1)
    ax.set_ylim(-0.1, 9.9)
    ax.set_axis_off()
    head(ax, "Who starts whom, and tells it what", key=[])
    return ax
