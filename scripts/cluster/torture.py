"""Try to break a run: kill ranks, kill the write of a checkpoint, fill the disk, damage files. Print what survived.

    python scripts/cluster/torture.py                      everything, about half an hour on two cores
    python scripts/cluster/torture.py --kills 3 --inputs 200 --only kill-a-rank damaged-log
    python scripts/cluster/torture.py --json build/torture.json

Each attack checks its outcome against an undisturbed run or the undamaged file. Status 0: all survived; 1: the table
says what did not. The same --seed makes the same attacks (when a process dies depends on the machine's speed, too).
"""

import contextlib
import io
import itertools
import multiprocessing
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
import warnings
from pathlib import Path

import jupytext
import nbformat
import numpy as np
import torch

import checkpoint
import data
import files
import options
import run_log
from course import processes, rank_program, runs

ROOT = Path(__file__).resolve().parent.parent.parent
LIMIT = 300  # seconds for one run, its restarts included
JOB = ["--dataset", "synthetic", "--samples", "1206", "--test-samples", "101", "--epochs", "6",
       "--global-batch-size", "96"]


class Broken(AssertionError):
    """An attack that did harm. One line says which."""


class NotTried(Exception):
    """The rest of an attack needs what is not here. One line says what."""


def expect(condition, otherwise):
    if not condition:
        raise Broken(otherwise)


def expect_none_left(mark):
    """Broken where a process with this mark is still there after 20 s."""
    give_up = time.monotonic() + 20
    while processes.marked(mark) and time.monotonic() < give_up:
        time.sleep(0.1)
    left = processes.end(mark)
    expect(not left, f"{left} process(es) left behind")


def environment(mark):
    """Of a command: nothing of a launcher, and the mark."""
    foreign = ("RANK", "WORLD_SIZE", "MASTER_", "SLURM_", "LOCAL_")
    own = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return processes.environment(mark, own)


def finished(*command, mark="torture", **env):
    """A command that has come to its end, and what it said."""
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT,
                          env={**environment(mark), **env})


def main_py(*options, **env):
    """A finished main.py, one process."""
    return finished(sys.executable, "main.py", *JOB, "--epochs", "2", *options, **env)


class Job:
    """A torchrun of main.py, which runs. `mark` finds its processes."""

    def __init__(self, ranks, *options, restarts=0):
        self.mark = uuid.uuid4().hex
        self.said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - finish() reads it
        self.torchrun = subprocess.Popen([sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={ranks}",
                                          f"--max-restarts={restarts}", "main.py", *JOB, *map(str, options)], cwd=ROOT,
                                         stdout=self.said, stderr=subprocess.STDOUT, env=environment(self.mark))

    def wait_for(self, condition):
        """Until the condition holds; Broken where the run ends first."""
        give_up = time.monotonic() + LIMIT
        while not condition():
            expect(time.monotonic() < give_up and self.torchrun.poll() is None, "the run did not begin")
            time.sleep(0.1)

    def finish(self, seconds=LIMIT):
        """(exit status, what was said); Broken where it hangs or leaves a process."""
        try:
            self.torchrun.wait(seconds)
        except subprocess.TimeoutExpired:
            processes.end(self.mark)
            raise Broken(f"still running after {seconds} s") from None
        expect_none_left(self.mark)
        self.said.seek(0)
        return self.torchrun.returncode, self.said.read()


# ------------------------------------------------------------------------------------------------- attacks: the run


def kill_a_rank(folder, rng, args):
    """A random rank gets SIGKILL at a random moment; torchrun restarts. Weights and log are the undisturbed run's."""
    expected = {}
    for ranks in (2, 3):
        model, log = folder / f"{ranks}.pt", folder / f"{ranks}.jsonl"
        begin = time.monotonic()
        status, said = Job(ranks, "--save-model", model, "--log-file", log).finish()
        expect(status == 0, f"the undisturbed run failed: {said[-300:]}")
        expected[ranks] = torch.load(model, weights_only=True), runs.read_run(log), time.monotonic() - begin
    killed = 0
    for number in itertools.count(1):
        ranks, here = rng.choice((2, 3)), folder / f"kill-{number}"
        here.mkdir()
        weights, table, seconds = expected[ranks]
        moment, victim = rng.uniform(0.2, 1.0) * seconds, rng.randrange(ranks)
        job = Job(ranks, "--save-model", here / "m.pt", "--log-file", here / "l.jsonl", "--checkpoint", here / "c",
                  "--checkpoint-every", rng.choice((1, 5, 13)), restarts=3)
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.torchrun.wait(moment)
        alive = processes.find_rank(job.mark, victim)
        if alive:  # else the run was faster than our moment: nobody disturbed it, and it does not count
            alive.kill()
        status, said = job.finish()
        what = f"kill {number}: rank {victim} of {ranks} after {moment:.1f} s"
        expect(status == 0, f"{what}: status {status}: {said[-200:]}")
        got = torch.load(here / "m.pt", weights_only=True)
        expect(all(torch.equal(got[name], value) for name, value in weights.items()), f"{what}: other weights")
        log = runs.read_run(here / "l.jsonl")
        expect(list(log["epoch"]) == list(table["epoch"]) and set(log["status"]) == {"completed"}, f"{what}: log")
        expect(list(log["loss"]) == list(table["loss"]), f"{what}: other losses in the log")
        shutil.rmtree(here)
        if alive:
            killed += 1
            yield
        if killed == args.kills:
            return
        expect(number < 3 * args.kills + 10, f"only {killed} of {number} runs lasted until they were killed")


def hang_a_rank(folder, rng, args):
    """A rank stops without dying (SIGSTOP). The others end within --timeout, and name it."""
    for number in range(max(1, args.kills // 10)):
        log = folder / f"{number}.jsonl"
        job, victim = Job(3, "--epochs", 1000, "--timeout", 15, "--log-file", log), rng.randrange(3)
        job.wait_for(lambda log=log: log.exists() and '"epoch"' in log.read_text())
        processes.find_rank(job.mark, victim).suspend()
        status, said = job.finish(15 + 120)
        others = ", ".join(str(rank) for rank in range(3) if rank != victim)
        expect(status != 0 and f"rank(s) {others} waited in epoch" in said and f"no word from rank(s) {victim}" in said,
               f"rank {victim} is not named: {said[-300:]}")
        yield


def kill_the_write(folder, rng, args):
    """SIGKILL before each line of Checkpoint.write, where each system call (open, write, fsync, rename) has its own:
    a whole checkpoint is found, the old one until the rename and the new one after it."""
    path, values = folder / "c", []
    for line in itertools.count(1):
        for old in folder.iterdir():
            old.unlink()
        write(path, 1)
        process = multiprocessing.get_context("fork").Process(target=write_until, args=(path, line))
        process.start()
        process.join(LIMIT)
        expect(process.exitcode in (0, -signal.SIGKILL), f"line {line}: status {process.exitcode}")
        values.append(read(path)["value"])
        expect(values == sorted(values), f"line {line}: the new checkpoint was there, and is gone")
        yield
        if process.exitcode == 0:
            expect(values[-1] == 2 and len(values) > 12, f"only {len(values)} lines")
            return


def write_until(path, line):
    """Overwrite the checkpoint, but for SIGKILL before the `line`-th line that Checkpoint.write comes to."""
    left = line

    def trace(frame, event, argument):
        nonlocal left
        if frame.f_code is not checkpoint.Checkpoint.write.__code__:
            return None
        left -= event == "line"
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    write(path, 2)


def write(path, value):
    keeper = checkpoint.Checkpoint(path)
    with keeper.lock:
        keeper.write({"value": value, "weights": torch.arange(500.0)})


def read(path):
    keeper = checkpoint.Checkpoint(path)
    with keeper.lock:
        return keeper.read()


# ------------------------------------------------------------------------------------------------ attacks: the disk


def fill_the_disk(folder, rng, args):
    """A file system that is full, or turns read-only, while a checkpoint or the log is written: one line, status not 0,
    and the last checkpoint is whole. Needs the right to mount; that a log can grow no more (ulimit) is tried
    everywhere."""
    data.get_dataset("synthetic", ROOT / "data")  # else that would be what cannot be written
    program = shlex.join([sys.executable, "main.py", *JOB, "--epochs", "2", "--log-file", str(folder / "log")])
    done = finished("bash", "-c", f"ulimit -f 1; {program}")
    expect(done.returncode == 2 and "Traceback" not in done.stderr and "File too large" in done.stderr,
           done.stderr[-300:])
    yield
    if not shutil.which("unshare"):
        raise NotTried("to fill a disk of its own: no unshare")
    for size, cover, uncover, reason in (
            ("1200k", "", "", "No space left on device"),
            ("9m", 'mount -t tmpfs -o ro tmpfs "$1"', 'umount "$1"', "Read-only file system")):
        place, kept = folder / size, folder / f"kept-{size}"
        place.mkdir()
        script = f"""mount -t tmpfs -o size={size} tmpfs "$1" || exit 99
            {sys.executable} main.py {' '.join(JOB)} --epochs 200 --checkpoint "$1/c" & run=$!
            while [ ! -e "$1/c" ] && kill -0 $run; do sleep 0.1; done
            {cover}
            wait $run; status=$?
            {uncover}
            mkdir "$2"; cp "$1"/c* "$2"; exit $status"""
        user = ["--map-root-user"] if os.getuid() else []
        done = finished("unshare", "--mount", *user, "bash", "-c", script, "_", place, kept)
        if done.returncode == 99 or "unshare" in done.stderr:
            raise NotTried("to fill a disk of its own: mount is not permitted")
        expect(done.returncode == 2 and reason in done.stderr and "Traceback" not in done.stderr,
               f"status {done.returncode}: {done.stderr[-300:]}")
        expect("parts" in read(kept / "c"), "the checkpoint before is not whole")
        yield


def share_a_path(folder, rng, args):
    """A second job on the checkpoint or the log of a running one is refused; once the first is killed, it is not."""
    for option in ("--checkpoint", "--log-file"):
        file = folder / option.strip("-")
        first = Job(2, "--epochs", 1000, option, file)
        first.wait_for(lambda file=file: file.exists() and file.stat().st_size)
        second = main_py(option, file)
        processes.end(first.mark)
        first.finish()
        expect(second.returncode == 2 and "another run is writing to it" in second.stderr, second.stderr[-200:])
        if option == "--log-file":
            expect(main_py(option, file).returncode == 0, "the lock outlived its process")
        yield


# ------------------------------------------------------------------------------------------------- attacks: bad input


def unwritable_path(folder, rng, args):
    """A folder, a pipe, a device, a link to nowhere or an empty name as the file of a log, a checkpoint or weights is
    refused in one line before any training, and nothing is left behind."""
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("nowhere")
    cases = list(itertools.product(("--log-file", "--checkpoint", "--save-model"),
                                   (folder, folder / "pipe", "/dev/zero", folder / "link", "")))
    for option, place in rng.sample(cases, min(len(cases), args.kills)):
        done = main_py(option, place)
        expect(done.returncode == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 1,
               f"{option} '{place}': status {done.returncode}: {done.stderr[-300:]}")
        expect({path.name for path in folder.iterdir()} == {"pipe", "link"}, f"{option} '{place}' left a file")
        yield


def contradicting_launcher(folder, rng, args):
    """A rank, a local rank, a world size or a port that cannot be is refused at once, not waited for."""
    cases = [{"RANK": "5"}, {"RANK": "-1"}, {"WORLD_SIZE": "0"}, {"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"},
             {"LOCAL_WORLD_SIZE": "4"}, {"MASTER_PORT": "65536"}, {"MASTER_PORT": "http"}]
    for wrong in rng.sample(cases, min(len(cases), args.kills)):
        begin = time.monotonic()
        done = main_py("--timeout", "60", **{"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", **wrong})
        expect(done.returncode == 2 and len(done.stderr.splitlines()) == 1, f"{wrong}: {done.stderr[-300:]}")
        expect(time.monotonic() - begin < 40, f"{wrong}: it waited")
        yield


# ---------------------------------------------------------------------------------------------- attacks: damaged files


def damage(raw, rng):
    """A copy of `raw` that is cut short, or has a byte changed, or a stretch missing or doubled."""
    place, kind = rng.randrange(len(raw)), rng.randrange(4)
    if kind == 0:
        return raw[:place]
    if kind == 1:
        return raw[:place] + bytes([raw[place] ^ 1 << rng.randrange(8)]) + raw[place + 1:]
    end = min(len(raw), place + rng.randrange(1, 200))
    return raw[:place] + (raw[end:] if kind == 2 else raw[place:end] + raw[place:])


def damaged_checkpoint(folder, rng, args):
    """Any damage is found: a damaged checkpoint is never loaded."""
    write(folder / "c", 1)
    raw = (folder / "c").read_bytes()
    for number in range(args.inputs):
        bad = damage(raw, rng)
        if bad != raw:
            try:
                checkpoint.parse(bad)
            except checkpoint.Unusable:
                yield
            else:
                raise Broken(f"input {number} was loaded")


def damaged_log(folder, rng, args):
    """A row that the reader gives is the row that was written; what is missing is said."""
    path, figures = folder / "log.jsonl", ["loss", "accuracy", "seconds", "images_per_second"]
    with run_log.RunLog(path) as log:
        log.write("run", epochs=8, model="lenet", world_size=2, batch_size=48)
        for epoch in range(8):
            log.write("epoch", epoch=epoch, loss=2.3 / (1 + epoch), accuracy=0.1 * epoch, seconds=1.5,
                      images_per_second=800.0)
    raw, written = path.read_bytes(), runs.read_run(path).set_index("epoch")[figures]
    for number in range(args.inputs):
        path.write_bytes(bad := damage(raw, rng))
        try:
            table = runs.read_run(path)
        except runs.RunError:
            yield
            continue
        rows = table.dropna(subset="epoch").set_index("epoch")[figures]
        expect(rows.equals(written.reindex(rows.index)), f"input {number}: a figure is wrong in {rows.to_dict()}")
        if bad.strip() != raw.strip() and (len(rows) < 8 or table["status"][0] != "completed"):
            expect(table["note"][0], f"input {number}: a partial read that says nothing")
        yield


def damaged_data(folder, rng, args):
    """A damaged data file is found and built again, or refused: never trained on."""
    prepare = folder / "synthetic.pt"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        data.prepare("synthetic", prepare)
        size, sound = prepare.stat().st_size, data.get_dataset("synthetic", folder)[0]
        images = sound.images[::997].clone()
        for _ in range(max(1, args.kills // 5)):
            place = rng.randrange(size)
            if rng.random() < 0.5:
                os.truncate(prepare, place)
            else:
                np.memmap(prepare, mode="r+")[place] ^= 1 << rng.randrange(8)
            again = data.get_dataset("synthetic", folder)[0]
            expect(torch.equal(again.images[::997], images), f"damage at byte {place} of {size} went unseen")
            for old in folder.glob("*.damaged*"):
                old.unlink()
            yield


# ------------------------------------------------------------------------------------------- attacks: the notebook


def unruly_command(folder, rng, args):
    """A command of a notebook that fails, hangs, or writes no log: its cell fails, and papermill says which command,
    after how long, or which log. No process is left."""
    lesson = jupytext.read(ROOT / "notebooks/text/00_start_here.py")
    setup = next(cell.source for cell in lesson.cells if cell.cell_type == "code")
    cells = [  # source, the cell's limit in seconds, what papermill must say
        ("!torchrun --nproc_per_node=2 main.py --batch-size=0", LIMIT, ["--batch-size=0", "exit status 1"]),
        ("!torchrun --nproc_per_node=2 --no-python sleep 999999", 20, ["sleep", "20 seconds"]),
        (f"!python -c pass\nfrom course import runs\nruns.read_run('{folder}/never.jsonl')", LIMIT, ["never.jsonl"]),
    ]
    mark, notebook = uuid.uuid4().hex, folder / "lesson.ipynb"
    for source, limit, words in cells:
        lesson.cells = [nbformat.v4.new_code_cell(each) for each in (setup, source)]
        nbformat.write(lesson, notebook)
        done = finished(sys.executable, "-m", "papermill", notebook, notebook, "--execution-timeout", str(limit),
                        "--no-progress-bar", mark=mark)
        expect_none_left(mark)
        expect(done.returncode != 0, f"papermill passed {source!r}")
        expect(all(word in done.stderr for word in words),
               f"{source!r}: papermill does not say {words}: {done.stderr[-300:]}")
        yield


ATTACKS = {attack.__name__.replace("_", "-"): attack for attack in (
    kill_a_rank, hang_a_rank, kill_the_write, fill_the_disk, share_a_path, unwritable_path, contradicting_launcher,
    damaged_checkpoint, damaged_log, damaged_data, unruly_command)}


def main():
    parser = rank_program.parser(__doc__)
    add = parser.add_argument
    add("--kills", type=options.positive(int), default=50, help="runs of kill-a-rank; others go by it")
    add("--inputs", type=options.positive(int), default=5000, help="damaged inputs for each reader")
    add("--only", nargs="+", choices=ATTACKS, default=list(ATTACKS), metavar="ATTACK", help=", ".join(ATTACKS))
    add("--seed", type=options.from_zero, default=0)
    add("--json", type=options.nonempty_path, help="write the table to this file as well")
    args = parser.parse_args()
    if args.json:
        with parser.one_line():
            files.check_output("--json", args.json)
    warnings.simplefilter("ignore")
    table = []
    for name in args.only:
        rng, tried, failure, left_out = random.Random(f"{args.seed} {name}"), 0, None, None
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="torture-") as folder:
            try:
                for _ in ATTACKS[name](Path(folder), rng, args):
                    tried += 1
            except Broken as error:
                failure = str(error)
            except NotTried as missing:
                left_out = str(missing)
        what, seconds = " ".join(ATTACKS[name].__doc__.split()), round(time.monotonic() - begin)
        table.append({"attack": name, "survived": tried, "failed": failure, "not_tried": left_out, "seconds": seconds,
                      "what": what})
        print(f"{name:20} {f'FAILED: {failure}' if failure else f'{tried} survived'} ({seconds} s)"
              f"{f'; not tried: {left_out}' if left_out else ''}", flush=True)
    print("\n| attack | survived | what holds |\n|---|---|---|")
    for row in table:
        end = " and then FAILED" if row["failed"] else f"; not tried: {row['not_tried']}" if row["not_tried"] else ""
        print(f"| {row['attack']} | {row['survived']}{end} | {row['what']} |")
    if args.json:
        rank_program.write_json(args.json, table)
    sys.exit(any(row["failed"] for row in table))


if __name__ == "__main__":
    main()
