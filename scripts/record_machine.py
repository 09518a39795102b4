"""Records what this machine does in results/recorded/NAME/, with a README. scripts/record starts it.

The tests marked gpu, the main.py commands of lesson 08 with its three losses, and a short benchmark. All of it, or
nothing: a run that fails ends this program. (Tests may fail: the recording then says which.)

Exit status: 0 recorded, 1 a run failed, 2 bad input, 130 stopped by Ctrl-C.
"""

import os
import platform
import re
import shlex
import socket
import sys
import tempfile
import time
import uuid
from collections import Counter
from datetime import date
from pathlib import Path

import psutil

from course import processes, rank_program
from course.lesson import ROOT, some

RECORDED = Path("results/recorded")
LIMIT = 1800  # seconds, for one command
TRAINING = "--epochs 6 --samples 6144 --test-samples 2000"  # those of lesson 08
QUICK = "--epochs 2 --samples 640 --test-samples 200"


def commands(folder, quick):
    """{name: a command line}, in the order in which they run. `folder`: where their files go."""
    ranks, training = (2, QUICK) if quick else (8, TRAINING)
    log = f"main.py {training} --log-file {folder}"
    runs = {f"{n} ranks": f"torchrun --nproc_per_node={n} {log}/{n}-ranks.jsonl" for n in (2, 4, 8) if n <= ranks}
    # only files with such tests: the others want packages that somebody else's machine may not have
    tests = sorted(str(path) for room in ("lessons", "tests") for path in Path(room).rglob("test_*.py")
                   if re.search(r"[@[]pytest\.mark\.gpu", path.read_text(encoding="utf-8")))
    benchmark = "--only epoch " + ("--rounds 1 --samples 256" if quick else "--only ranks --rounds 3 --samples 12800")
    return {
        "tests": f"python -m pytest -m gpu -q -rA --tb=line -p no:cacheprovider {' '.join(tests)}",
        "1 rank": f"python {log}/1-rank.jsonl", **runs,
        "losses": f"torchrun --nproc_per_node={ranks} lessons/l08_performance/losses.py "
                  f"--rounds {1 if quick else 7} --out {folder}/losses.json",
        "benchmark": f"python scripts/measure/benchmark.py {benchmark} --out {folder}/benchmark.json",
        # precision, the compiler, memory along a step and a trace: what the page On a GPU shows
        **({"language model": f"torchrun --nproc_per_node=1 scripts/measure/one_gpu.py --rounds {1 if quick else 7} "
                              f"--out {folder}"} if Path("/dev/nvidiactl").exists() else {}),
    }


def run(command, may_fail):
    """The output of a command, without paths and the host's name. A failure ends this program unless it `may_fail`."""
    words = shlex.split(command)
    program = [sys.executable, *words[1:]]
    if words[0] == "torchrun":
        program[1:1] = ["-m", "torch.distributed.run"]
    started = time.monotonic()
    status, text = processes.run_and_read(program, LIMIT, uuid.uuid4().hex)
    if status != 0 and not may_fail:
        how = f"not done within {LIMIT} s" if status is None else f"exit status {status}"
        sys.exit(f"{text[-2000:]}\nscripts/record: {command}: {how}; nothing was recorded")
    print(f"{time.monotonic() - started:4.0f} s", flush=True)
    return without_names(text)


def without_names(text):
    """The text without the host's name, and without the folders that messages of torch and pytest name."""
    for folder in {str(Path.home()), tempfile.gettempdir()} - {"/"}:
        text = text.replace(f"{folder}/", "")
    return re.sub(rf"\b{re.escape(socket.gethostname())}\b", "(host)", text)


def machine():
    """{heading: value} of the README's first lines."""
    import torch

    from trainer import launch

    gpus = Counter(torch.cuda.get_device_name(gpu) for gpu in range(torch.cuda.device_count()))
    versions = [f"PyTorch {torch.__version__}", f"Python {platform.python_version()}",
                f"{platform.system()} {platform.machine()}"]
    if gpus:
        versions += [f"CUDA {torch.version.cuda}", "NCCL " + ".".join(map(str, torch.cuda.nccl.version()))]
    processor = launch.device_name(torch.device("cpu"))
    memory = psutil.virtual_memory().total / 2**30
    return {"Machine": ", ".join([*(f"{count} × {name}" for name, count in gpus.items())] or ["no GPU"])
            + f", {some(launch.cores(), 'core')} of {processor}, {memory:.0f} GiB of memory",
            "Versions": ", ".join(versions) + ". Each log's first record has the rest",
            "Date": str(date.today())}


def readme(name, printed, quick, facts):
    """The README of a recording. `printed`: {name of a command: its output}; `facts`: of `machine`."""
    summary = printed["tests"].strip().splitlines()[-1].strip("= ")
    lines = "\n".join(f"- **{what}**: {value}." for what, value in facts.items())
    quick_line = "\n- **The times say nothing**: recorded with `--quick`, to try the recording out." if quick else ""
    return f"""# {name}

The runs of lesson 08, LeNet on CIFAR-10 (or the synthetic set, as each log says), one thread a process.

{lines}{quick_line}
- **Command**: `scripts/record {name}{' --quick' * quick}`.
- **Tests that need a GPU**: {summary} (`gpu-tests.out`).

| file | what it holds |
|---|---|
| `1-rank.jsonl`, `N-ranks.jsonl` | the run logs |
| `losses.json` | images per second of one process, of processes that never communicate, and of DDP |
| `benchmark.json`, `benchmark.out` | ratios of whole runs, with their median |
| `gpt.json`, `profile.txt`, `profile.json.gz` | with a GPU: a language model, as the page *On a GPU* shows it |
| `gpu-tests.out` | each test marked `gpu`, and what became of it |

What ran, one after another, with `OMP_NUM_THREADS=1`:

```
{chr(10).join(commands(RECORDED / name, quick).values())}
```

The table: `python scripts/runs.py {RECORDED / name}`.
"""


def main():
    parser = rank_program.parser(__doc__)
    parser.prog = "scripts/record"
    parser.add_argument("name", metavar="NAME", help="of the machine, such as 2xt4")
    parser.add_argument("--quick", action="store_true", help="the least of everything, within a minute or two")
    args = parser.parse_args()
    os.chdir(ROOT)
    target, live = RECORDED / args.name, Path("results/live")
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,39}", args.name):
        parser.error(f"NAME {args.name!r}: lower-case letters, digits and hyphens, at most 40, such as 2xt4")
    if target.exists():
        parser.error(f"{target} is there already, and no recording is changed: choose another NAME")
    os.environ["OMP_NUM_THREADS"] = "1"
    # as in the lessons, beside whose runs they stand: course/lesson.py, begin()
    os.environ.update(MALLOC_TRIM_THRESHOLD_="-1", MALLOC_MMAP_MAX_="0")
    with rank_program.stoppable(parser):
        live.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=live, prefix=f"{args.name}-") as made:
            folder, printed = Path(made) / args.name, {}
            folder.mkdir()  # one inside: the outer one is for its owner alone
            for what, command in commands(folder, args.quick).items():
                print(f"{what:10} ", end="", flush=True)
                printed[what] = run(command, may_fail=what == "tests")
            (folder / "gpu-tests.out").write_text(printed["tests"], encoding="utf-8")
            (folder / "benchmark.out").write_text(printed["benchmark"].partition("every figure:")[0], encoding="utf-8")
            (folder / "README.md").write_text(readme(args.name, printed, args.quick, machine()), encoding="utf-8")
            folder.rename(target)
    print(f"\n{target}: look at its README.md, write there whatever was odd, and add a line to {RECORDED}/README.md. "
          "Then send it: a pull request, or an archive of the folder.")


if __name__ == "__main__":
    main()
