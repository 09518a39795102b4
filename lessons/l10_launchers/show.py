"""Lesson 10: the variables of a rank, who started whom, attempts in a notebook, torchrun's options."""

import re
import socket
import subprocess
import uuid
from itertools import pairwise
from pathlib import Path
from statistics import mean
from unittest import mock

import matplotlib.pyplot as plt
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from torch.distributed import run as torchrun
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousTimeout

from course import processes
from course.plots.style import COLOURS, GREY, PALE, head, write_in
from course.rendezvous import MEANING

MORE = {
    "TORCHELASTIC_RESTART_COUNT": "restarts so far", "TORCHELASTIC_MAX_RESTARTS": "restarts at most",
    "TORCHELASTIC_RUN_ID": "name of the job: `--rdzv-id`",
    "TORCHELASTIC_USE_AGENT_STORE": "torchrun itself listens at that port",
    "TORCHELASTIC_ERROR_FILE": "where `@record` leaves a traceback", "OMP_NUM_THREADS": "threads of each process",
    "ROLE_RANK": "as RANK, where all ranks have one role", "ROLE_WORLD_SIZE": "as WORLD_SIZE, likewise",
    "ROLE_NAME": "the role", "TORCHELASTIC_SIGNALS_TO_HANDLE": "on these torchrun ends its ranks",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "a failed NCCL collective ends the rank"}
ERROR_LINE = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception): \S.*$", re.MULTILINE)


def variables(environment: dict) -> list[dict]:
    """Rows: what each variable that a launcher gave a rank says, and its value. No host and no folder is shown."""
    def shown(text):
        name = ("this machine" if text in (socket.gethostname(), socket.getfqdn()) else
                f"…/{Path(text).name}" if text.startswith("/") else text)
        return name if len(name) < 31 else f"{name[:28]}…"

    meaning = MEANING | MORE
    names = sorted(environment, key=lambda name: (list(meaning).index(name) if name in meaning else 99, name))
    return [{"variable": f"`{name}`", "says": meaning.get(name, ""),
             f"rank {environment['RANK']}": shown(environment[name])} for name in names]


def process_tree(ranks: list[dict], needed: set[str]) -> plt.Axes:
    """Who started whom: `ranks` are records of hello_rank.py. Each says how many of the `needed` variables it got."""
    ax, nodes, links = plt.subplots(figsize=(14, 1.2 * len(ranks)))[1], {}, set()
    for row, rank in enumerate(ranks):
        told = f"told {len(needed & set(rank['variables']))} of {len(needed)}"
        chain = [(pid, name) for pid, name in rank["parents"] if name]  # without shells
        names = [name for _, name in chain]
        chain = chain[:names.index("this notebook") + 1] if "this notebook" in names else chain
        chain = [*reversed(chain), (rank["pid"], f"rank {rank['rank']}: {told}")]
        links |= set(pairwise(pid for pid, _ in chain))
        for depth, (pid, name) in enumerate(chain):
            nodes.setdefault(pid, (name, depth, []))[2].append(row)
    place = {pid: (depth, mean(rows)) for pid, (_, depth, rows) in nodes.items()}
    for parent, child in links:
        ax.plot(*zip(place[parent], place[child], strict=True), color=GREY, zorder=1)
    for pid, (name, depth, _) in nodes.items():
        colour = COLOURS[0] if name.startswith("rank") else COLOURS[4] if depth else PALE
        write_in(ax, *place[pid], f"{name}\nprocess {pid}", colour, path_effects=None,
                 bbox={"boxstyle": "round,pad=0.5", "facecolor": colour, "edgecolor": "none"})
    ax.margins(0.2)
    ax.invert_yaxis()
    ax.set_axis_off()
    head(ax, "Who started whom, and what a rank was told", key=[])
    return ax


def in_a_notebook(first: str, cell: str, seconds: float) -> tuple[str, str]:
    """How a notebook of these two cells ends, where each may take so many seconds: "worked", "failed" or "hung", and
    what it prints, or the first error. Nothing that it started is left."""
    mark = uuid.uuid4().hex
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in (first, cell)])
    client = NotebookClient(notebook, timeout=seconds, kernel_name="python3", shutdown_kernel="immediate")
    try:
        client.execute(env=processes.environment(mark), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except CellTimeoutError:
        return "hung", f"no end within {seconds} s: killed"
    except CellExecutionError as error:
        printed = "".join(part.get("text", "") for part in notebook.cells[1].outputs)
        return "failed", ERROR_LINE.findall(f"{printed}\n{error.ename}: {error.evalue}")[0]
    finally:
        processes.end(mark)
    return "worked", "".join(part.get("text", "") for part in notebook.cells[1].outputs).strip()


def launch_config(options: str):
    """The LaunchConfig that `torchrun OPTIONS main.py` would work with. Nothing is started."""
    with mock.patch.object(torchrun, "elastic_launch") as launch:
        torchrun.run(torchrun.parse_args([*options.split(), "main.py"]))
    return launch.call_args.kwargs["config"]


def rendezvous(config) -> dict:
    """Cells of a row: what a torchrun with this LaunchConfig waits for, and where."""
    nodes, join = {config.min_nodes, config.max_nodes}, RendezvousTimeout().join.total_seconds()
    return {"nodes": " to ".join(map(str, sorted(nodes))), "rendezvous": config.rdzv_backend,
            "they meet at": config.rdzv_endpoint,
            "name of the job": config.run_id if len(config.run_id) < 9 else f"{config.run_id[:8]}…",
            "waits for nodes, s": f"{config.rdzv_configs['timeout'] if config.rdzv_backend == 'static' else join:g}"}


def mine_or_ours(exercise, ours: Path) -> tuple[Path, str]:
    """(the file that the check has found right, "yours"); else (`ours`, with our solution written to it, "ours")."""
    if exercise.file:
        return exercise.file, "yours"
    ours.write_text(exercise.answer)
    return ours, "ours"


def essential(console: str) -> str:
    """The lines of main.py on a console that say who trains, and each epoch; no more than 150 characters of each."""
    return "\n".join(line[:150] for line in console.splitlines() if re.search(r"rank\(s\) x batch|Epoch: \d", line))
