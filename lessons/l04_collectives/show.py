"""Lesson 04: what gloo has, what the ring sent, how long a call took, and what each rank of a hang said and waited for.

What is handed in was written by lessons/l04_collectives/collectives_shown.py and
lessons/l04_collectives/hang_on_purpose.py.
"""

import re


def backend(demo):
    """Which of the collectives gloo has: older versions lack some, which the script then builds from others."""
    built = [name for name, found in demo.items() if isinstance(found, dict) and "unsupported" in found]
    if not built:
        return f"Here gloo (torch {demo['torch']}) has all of them."
    return f"Here gloo (torch {demo['torch']}) lacks {', '.join(built)}: the script builds these from others."


def after_reduce(found, rank):
    """What `rank` holds after a reduce to another: what it had, the sum, or something else."""
    before, after = (state["cells"] for state in found["states"])
    total = [sum(column) for column in zip(*before, strict=True)]
    return {tuple(total): "the sum", tuple(before[rank]): "as before"}.get(tuple(after[rank]), "something else")


def ring(found):
    """What the ring's ranks sent, and whether they have what dist.all_reduce gives."""
    ranks = range(len(found["chunks"]))
    sent = [sum(step["bytes"][rank] for step in found["steps"][1:]) for rank in ranks]
    equal = sum(found["equal"])
    return [{"": what, "found": str(value)} for what, value in {
        "tensor, bytes": found["bytes"],
        "sent by each rank, bytes": ", ".join(map(str, sent)),
        "ranks whose whole numbers equal those of `dist.all_reduce`": f"{equal} of {len(ranks)}",
        "decimal numbers: largest difference from `dist.all_reduce`": f"{found['floats']['off']:.0e}",
        "decimal numbers: the same bits on all ranks": "yes" if found["floats"]["ranks_agree"] else "no",
    }.items()]


def handle(found):
    """How long each rank spent in the asynchronous call, in its own work, and in wait(), milliseconds."""
    at = {state["label"]: state["seconds"] for state in found["states"]}
    parts = {"the call, ms": ("before the call", "after the call"), "own work, ms": ("after the call", "before wait()"),
             "`wait()`, ms": ("before wait()", "after wait()")}
    return [{"rank": rank} | {part: f"{1000 * (at[end][rank] - at[begin][rank]):.1f}"
                              for part, (begin, end) in parts.items()}
            for rank in range(len(at["before the call"]))]


def says(ranks):
    """What each rank said in the end, without its place in gloo's source and the options of its tensors."""
    rows = []
    for number, saw in enumerate(ranks):
        text = re.sub(r"\[[^\] ]*/[^\]]*\] ?", "", saw["error"] or "")
        said = " ".join(re.sub(r"TensorOptions\(.*?\)\)\)", "…)", text).split())
        rows.append({"rank": number, "after, s": f"{saw['end']:.2f}", "it says": said or "nothing: it went on"})
    return rows


def waits(ranks):
    """In which function of torch each rank was when its stack was printed, and from which line of the program."""
    rows = []
    for number, saw in enumerate(ranks):
        line = next((line for line in saw["stack"] if "/hang_on_purpose.py" in line), "")
        inside = saw["stack"][1].split(" in ")[-1] if line else "–"
        rows.append({"rank": number, "it is in": f"`{inside}`", "called at": line.partition(", ")[2] or "–"})
    return rows
