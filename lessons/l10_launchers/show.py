"""Lesson 10: what launchers tell a rank, what ranks print, what torchrun makes of its options, what nodes say."""

import json
import math
import re
import statistics
import time
from pathlib import Path

from course.rendezvous import MEANING

MORE = {
    "TORCHELASTIC_RESTART_COUNT": "restarts so far", "TORCHELASTIC_MAX_RESTARTS": "restarts at most",
    "TORCHELASTIC_RUN_ID": "name of the job: `--rdzv-id`",
    "TORCHELASTIC_USE_AGENT_STORE": "torchrun itself listens at that port",
    "TORCHELASTIC_ERROR_FILE": "where `@record` leaves a traceback", "OMP_NUM_THREADS": "threads of each process",
    "ROLE_RANK": "as RANK, where all ranks have one role", "ROLE_WORLD_SIZE": "as WORLD_SIZE, likewise",
    "ROLE_NAME": "the role", "TORCHELASTIC_SIGNALS_TO_HANDLE": "on these torchrun ends its ranks",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "a failed NCCL collective ends the rank"}
SAID = re.compile(r"(print|write): rank \d+, step \d+")  # by chatter.py
ORDERS = (1, 3, 10, 30)  # among which a learner is asked to choose
CALLS = {"print": "print(line)", "write": 'sys.stdout.write(line + "\\n")'}


def variables(told, hosts):
    """Rows: what each variable that a rank was told says, and its value. `hosts`: this one's names, not to be shown."""
    def value(text):
        name = "this machine" if text in hosts else f"…/{Path(text).name}" if text.startswith("/") else text
        return name if len(name) < 31 else f"{name[:28]}…"

    meaning = MEANING | MORE
    names = sorted(told, key=lambda name: (list(meaning).index(name) if name in meaning else 99, name))
    return [{"variable": f"`{name}`", "says": meaning.get(name, ""), f"rank {told['RANK']}": value(told[name])}
            for name in names]


def glued(screen):
    """Rows: of the lines that the ranks of `chatter` printed, with each call, how many did not stay whole."""
    rows = []
    for call, shown in CALLS.items():
        found = [[one[1] for one in SAID.finditer(line)] for line in screen]
        with_it = [(line, calls) for line, calls in zip(screen, found, strict=True) if call in calls]
        several = [line for line, calls in with_it if len(calls) > 1]
        rows.append({"written with": f"`{shown}`", "lines printed": sum(calls.count(call) for _, calls in with_it),
                     "lines on the screen": len(with_it), "of these hold several": len(several),
                     "for example": f"`{several[0].strip()}`" if several else "–"})
    return rows


def rendezvous(config):
    """Cells of a row: what a torchrun with this LaunchConfig waits for, and where."""
    nodes = {config.min_nodes, config.max_nodes}
    return {"nodes": " to ".join(map(str, sorted(nodes))), "rendezvous": config.rdzv_backend,
            "they meet at": config.rdzv_endpoint,
            "name of the job": config.run_id if len(config.run_id) < 9 else f"{config.run_id[:8]}…"}


def attempts(processes):
    """Bars of a timeline: the life of each process of hello_rank.py, in milliseconds from the first one's start."""
    begin = min(process["first_line"] for process in processes)
    return [{"rank": process["rank"], "event": f"attempt {process['attempt']}",
             "text": process["end"].split(" ", 2)[2], "start": 1000 * (process["first_line"] - begin),
             "end": 1000 * (process["ready"] - begin)} for process in processes]


def essential(console):
    """The lines of main.py on a console that say who trains, and each epoch; no more than 150 characters of each."""
    return "\n".join(line[:150] for line in console.splitlines() if re.search(r"rank\(s\) x batch|Epoch: \d", line))


def ray_order(file):
    """Which of ORDERS is nearest to how many times as long two ranks take under Ray as under torchrun until a step is
    done. `file`: what scripts/measure/benchmark.py --only ray wrote."""
    times = statistics.median(_ratios(file))
    return min(ORDERS, key=lambda order: abs(math.log(order / times)))


def ray_start(file):
    """Rows: seconds of each round until a step is done, and their ratio, the smallest first."""
    rounds = _measured(file)["rounds"]["ray"]
    rows = [{"round": number, "torchrun, seconds": f"{one['torchrun start s']:.2f}",
             "Ray Train, seconds": f"{one['ray start s']:.2f}", "Ray / torchrun": f"{one['ray / torchrun start']:.1f}"}
            for number, one in enumerate(rounds, 1)]
    return [row for _, row in sorted(zip(_ratios(file), rows, strict=True), key=lambda pair: pair[0])]


def ray_where(file):
    """The median of the ratios; when, on what and how they were measured."""
    found, ratios = _measured(file), _ratios(file)
    day, versions = time.strftime("%Y-%m-%d", time.gmtime(found["time"])), found["versions"]
    whole = statistics.median(one["torchrun whole s"] + one["ray whole s"] for one in found["rounds"]["ray"])
    middle = f"Sorted by the ratio; its median is **{statistics.median(ratios):.1f}**. " if len(ratios) > 1 else ""
    return (f"{middle}Recorded on {day}, on a machine with {found['machine']['cores']} cores, PyTorch "
            f"{versions['torch']}, Ray {versions['ray']} (`{file}`). A round, until both prompts were back, took about "
            f"{whole:.0f} s.")


def _ratios(file):
    return [one["ray / torchrun start"] for one in _measured(file)["rounds"]["ray"]]


def _measured(file):
    return json.loads(Path(file).read_text(encoding="utf-8"))
