"""Draws what scripts/measure/one_gpu.py has recorded: memory.png and trace.png, into the same folder.

    python scripts/measure/gpu_pictures.py results/recorded/1xh100
"""

import argparse
import gzip
import json
from pathlib import Path

import matplotlib.pyplot as plt

from course.plots.style import COLOURS, GREY, head, name_rows

KINDS = {"matrix products": ("nvjet", "gemm", "cutlass"), "attention": ("sdpa", "flash", "attention"),
         "optimizer": ("multi_tensor",)}


def memory(samples: list[list], title: str):
    """[[where, bytes]] along a step: it rises block by block in forward, and falls in backward."""
    fig, ax = plt.subplots(figsize=(12, 5.5))
    sizes = [size / 2**30 for _, size in samples]
    ax.plot(range(len(sizes)), sizes, "o-", color=COLOURS[0], linewidth=3, markersize=7)
    for begins, ends, words in (("before", "loss", "forward"), ("loss", "backward done", "backward"),
                                ("backward done", "update", "update")):
        places = [[where for where, _ in samples].index(each) for each in (begins, ends)]
        ax.axvspan(*places, color=GREY, alpha=0.25 if words == "backward" else 0.08)
        ax.text(sum(places) / 2, 1.06 * max(sizes), words, ha="center", va="bottom", fontsize=16)
    ax.set_xticks(range(len(sizes)), [where.split()[-1] if where[-1].isdecimal() else "" for where, _ in samples],
                  fontsize=11)
    ax.set(xlabel="block", ylabel="GiB of tensors on the GPU", ylim=(0, 1.2 * max(sizes)))
    head(ax, title, key=[])
    return fig


def kind(name: str) -> str:
    return next((kind for kind, parts in KINDS.items() if any(part in name.lower() for part in parts)), "all else")


def trace(events: list[dict], title: str):
    """A lane of what Python calls and one of what the GPU computes, from a Chrome trace."""
    kernels = [each for each in events if each.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    launches = [each for each in events
                if each.get("cat") in ("cuda_runtime", "cuda_driver") and "Launch" in each["name"]]
    start = min(each["ts"] for each in kernels + launches)
    colours = {"matrix products": COLOURS[0], "attention": COLOURS[1], "optimizer": COLOURS[2], "all else": GREY}
    fig, ax = plt.subplots(figsize=(14, 4))
    ax.broken_barh([((each["ts"] - start) / 1000, each["dur"] / 1000) for each in launches], (-0.3, 0.6), color="black",
                   linewidth=0)
    for name, colour in colours.items():
        ax.broken_barh([((each["ts"] - start) / 1000, each["dur"] / 1000) for each in kernels
                        if kind(each["name"]) == name], (0.7, 0.6), color=colour, linewidth=0)
    name_rows(ax, ["Python launches\na kernel", "the GPU\ncomputes"])
    ax.set_xlabel("milliseconds")
    head(ax, title, key=colours, columns=4)
    return fig


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    facts = json.loads((folder / "gpt.json").read_text())
    on = f"bf16, {facts['gpu'].removeprefix('NVIDIA ')}"
    if facts["memory"]:
        memory(facts["memory"], f"Memory along one step ({on})").savefig(folder / "memory.png", dpi=80)
    events = json.loads(gzip.decompress((folder / "profile.json.gz").read_bytes()))["traceEvents"]
    if any(each.get("cat") == "kernel" for each in events):
        trace(events, f"One step ({on})").savefig(folder / "trace.png", dpi=80)


if __name__ == "__main__":
    main()
