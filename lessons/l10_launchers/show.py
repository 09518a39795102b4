"""Lesson 10: the variables of a rank, lines that ranks print at once, attempts in a notebook, torchrun's options."""

import re
import socket
import subprocess
import uuid
from pathlib import Path
from unittest import mock

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from torch.distributed import run as torchrun
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousTimeout

from course import processes
from course.rendezvous import MEANING

MORE = {
    "TORCHELASTIC_RESTART_COUNT": "restarts so far", "TORCHELASTIC_MAX_RESTARTS": "restarts at most",
    "TORCHELASTIC_RUN_ID": "name of the job: `--rdzv-id`",
    "TORCHELASTIC_USE_AGENT_STORE": "torchrun itself listens at that port",
    "TORCHELASTIC_ERROR_FILE": "where `@record` leaves a traceback", "OMP_NUM_THREADS": "threads of each process",
    "ROLE_RANK": "as RANK, where all ranks have one role", "ROLE_WORLD_SIZE": "as WORLD_SIZE, likewise",
    "ROLE_NAME": "the role", "TORCHELASTIC_SIGNALS_TO_HANDLE": "on these torchrun ends its ranks",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "a failed NCCL collective ends the rank"}
CALLS = {"print": "print(line)", "write": 'sys.stdout.write(line + "\\n")'}
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


def glued(screen: list[str]) -> list[dict]:
    """Rows: of the lines that the ranks of 10_chatter.py printed, with each call, how many did not stay whole."""
    rows = []
    for call, shown in CALLS.items():
        counts = {line: len(re.findall(rf"{call}: rank \d+, step \d+", line)) for line in screen}
        several = [line for line, count in counts.items() if count > 1]
        rows.append({"written with": f"`{shown}`", "lines printed": sum(counts.values()),
                     "lines on the screen": sum(count > 0 for count in counts.values()),
                     "of these hold several": len(several),
                     "for example": f"`{several[0].strip()}`" if several else "–"})
    return rows


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
