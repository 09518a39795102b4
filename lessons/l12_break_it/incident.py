"""An incident: a folder of evidence, and a budget of looks at it."""

import inspect
import json
import pickle
import re
import shlex
import subprocess
from pathlib import Path

from course import dial, lesson, plots, processes
from course.exercise import Exercise
from lessons.l12_break_it.jobs import job_4815

HERE = Path(__file__).parent


class Incident:
    """One job that went wrong. `look("log")` shows a piece of its evidence and costs a look; `look()` lists them all.

    evidence: {name: (what it is, a function that shows it)}. A name that ends in R is asked for with a rank.
    """

    def __init__(self, job: str, evidence: dict, budget: int = 10):
        self.job, self.evidence, self.budget, self.seen = job, evidence, budget, []

    def __call__(self, name: str | None = None) -> None:
        if name is None:
            lesson.table([{"look": f'`look_{self.job}("{name}")`', "what it is": what}
                          for name, (what, _) in self.evidence.items()])
            return print(f"{self.left} looks left.")
        rank = re.search(r" (\d+)$", name)
        what, show = self.evidence.get(name if not rank else f"{name[:rank.start()]} R", ("", None))
        if show is None:
            return print(f"There is no {name!r}. look_{self.job}() lists what there is. That cost nothing.")
        if name not in self.seen and not self.left:
            return print(f"All {self.budget} looks are used. Decide with what you have seen: {', '.join(self.seen)}.")
        self.seen += [name] if name not in self.seen else []
        try:
            show(*([int(rank[1])] if rank else []))
        except FileNotFoundError:
            self.seen.remove(name)
            return print(f"There is no {name!r}. That cost nothing.")
        print(f"Job {self.job}: {len(self.seen)} of {self.budget} looks used.")

    def show(self, name: str, *rank: int) -> None:
        """A piece of evidence by its name in the list, which costs no look."""
        self.evidence[name][1](*rank)

    @property
    def left(self) -> int:
        return self.budget - len(self.seen)


def score(*incidents: tuple[Incident, object]) -> list[dict]:
    """A row per incident, with its exercise: looks used, and whether it was solved."""
    return [{"job": look.job, "looks used": len(look.seen), "of": look.budget,
             "first": ", ".join(look.seen[:4]) or "–", "solved": "yes" if check.file else "not yet"}
            for look, check in incidents]


def text(job: str, name: str):
    """Shows a recorded output, with its command."""
    return lambda: print("Recorded:", (HERE / "evidence" / job / f"{name}.txt").read_text(encoding="utf-8"), sep="\n")


def film_of(job: str, name: str = "film") -> dict:
    return json.loads((HERE / "evidence" / job / f"{name}.json").read_text(encoding="utf-8"))["film"]


def lanes(job: str, steps: range):
    def show():
        plots.lanes(film_of(job), steps)
        lesson.figure(f"Recorded at 10 Gbit/s: job {job}, steps {steps.start} and {steps.stop - 1}. After the "
                      "all-reduce comes the rest of backward: DDP copies the means into the gradients. What rank 1, "
                      "the last to call, still waits for is the exchange itself. The gaps around an update are mostly "
                      "the film's own work.")
    return show


def agreement(job: str, name: str):
    """Shows per step of a film whether the ranks had the same gradients, and then the same weights."""
    def show():
        print("Recorded:")
        steps = {}
        for each in sorted(film_of(job, name)["steps"], key=lambda each: each["rank"]):
            steps.setdefault(each["step"], []).append(each)
        lesson.table([{"step, from 0": step,
                       **{f"loss of rank {each['rank']}": f"{each['loss']:.4f}" for each in ranks},
                       **{words: "the same" if len({str(each[kind]) for each in ranks}) == 1 else "differ"
                          for kind, words in (("gradients", "gradients"), ("values", "weights after it"))}}
                      for step, ranks in sorted(steps.items())])
    return show


def one_model() -> str:
    """What the recorded comparison of job 4802, over six updates, answers to "one model on all ranks?": yes or no."""
    said = (HERE / "evidence/4802/compare.txt").read_text(encoding="utf-8")
    return re.search(r"one model on all ranks\?\s+(\w+)", said)[1]


def report_of(console: str) -> str:
    """The doctor's report in what a run has printed, without torchrun's own lines, which follow it."""
    said = Path(console).read_text(encoding="utf-8")
    return re.split(r"^[WE]\d{4} ", said[said.find("doctor:"):], maxsplit=1, flags=re.M)[0]


def last_to_call() -> str:
    """The rank that calls the all-reduces of job 4815's film last, on average."""
    calls = film_of("4815")["messages"]
    last = max((0, 1), key=lambda rank: sum(call["t"] for call in calls if call["rank"] == rank))
    return f"rank {last}"


def in_turns(exercise: Exercise, pairs: int) -> tuple[str, list[float], list[float], list[float]]:
    """("your" or "our", seconds of an epoch of job 4815: as it was, with the shard that the exercise has found right,
    else ours, and as it was on connections without a limit), in turns, one of each per round. Its steps are unequally
    long: their median is no epoch's.
    """
    def seconds(dialled, options=""):
        said = processes.said(f"torchrun --nproc_per_node=2 {dialled} lessons/l12_break_it/jobs/job_4815.py {options}")
        return float(re.search(r"steps in ([\d.]+) s", said)[1])

    paced = "-m course.dial --rate 10gbit"
    if reason := dial.missing():
        print(f"No connection has a limit here: {reason}")
        paced = ""
    file, whose = exercise.file, "your"
    if not file:
        file, whose = Path("results/live/12_shard.py"), "our"
        file.write_text(inspect.getsource(exercise.answer))
    rounds = [(seconds(paced), seconds(paced, f"--shard {file}"), seconds("")) for _ in range(pairs)]
    return whose, *zip(*rounds, strict=True)


def source(job: str):
    return lambda: lesson.verdict(f"```python\n{(HERE / f'jobs/job_{job}.py').read_text()}\n```")


def frames():
    """Frames of each rank's batches in the order of the list, padding included."""
    lengths = job_4815.manifest()
    shares = [job_4815.shard(lengths, rank, 2) for rank in range(2)]
    size = job_4815.PER_BATCH
    lesson.table([{"batch": number // size, **{f"frames of rank {rank}":
                   size * max(lengths[index] for index in share[number:number + size])
                   for rank, share in enumerate(shares)}} for number in range(0, len(shares[0]), size)])


def dumps_of(folder: str) -> dict[int, dict]:
    """{rank: what its flight recorder held}."""
    return {int(path.name[5:]): pickle.loads(path.read_bytes()) for path in Path(folder).glob("rank_*")}


def hang(folder: str) -> Incident:
    """The incident of the ranks that hang.py has left in `folder`."""
    def stack(rank):
        print(Path(folder, f"{rank}.txt").read_text())

    def dump(rank):
        held = pickle.loads(Path(folder, f"rank_{rank}").read_bytes())
        lesson.table([{"group": entry["process_group"][1], "collective_seq_id": entry["collective_seq_id"],
                       "profiling_name": entry["profiling_name"], "retired": entry["retired"]}
                      for entry in held["entries"][-4:]])
        print("groups:", {group["desc"]: group["ranks"] for group in held["pg_config"].values()})

    def analyzer():
        command = f"torchfrtrace --prefix rank_ {folder}"
        said = subprocess.run(shlex.split(command), capture_output=True, text=True, timeout=120)
        block = r"Not all ranks joining.*\n.*\ngroup info: (?:\w+:)?(.+)\n.*\nmissing ranks: (.+)"
        missing = re.findall(block, said.stdout + said.stderr)
        print(f"$ {command}", *(f"not all have joined: {group}, missing ranks {ranks}" for group, ranks in missing),
              sep="\n")

    return Incident("4711", {
        "stack R": ("the stack of rank R, innermost call first", stack),
        "dump R": ("the last four collectives of rank R, and the members of its groups", dump),
        "analyzer": ("torchfrtrace, PyTorch's comparison of all dumps: the collectives that not all have called",
                     analyzer)})


def silent() -> Incident:
    return Incident("4802", budget=5, evidence={
        "log": ("the job of two ranks", text("4802", "log")),
        "file": ("its file, evaluated by one process", text("4802", "file")),
        "compare": ("equal to one process? two ranks, six updates", text("4802", "compare")),
        "compare more": ("equal to one process? two and three ranks, eighteen updates", text("4802", "compare-more")),
        "film": ("losses, gradients and weights per step, with 672 images: steps 2 to 4", agreement("4802", "film")),
        "program": ("the program's source", source("4802"))})


def slow() -> Incident:
    return Incident("4815", budget=4, evidence={
        "log": ("two ranks on one machine, connections without a limit", text("4815", "log")),
        "alone": ("one process, all recordings", text("4815", "alone")),
        "slow network": ("two ranks, a tenth of the job's rate: 1 Gbit/s", text("4815", "slow-network")),
        "own network": ("two ranks, the job's connections of 10 Gbit/s", text("4815", "own-network")),
        "film": ("what each rank did in two steps, at 10 Gbit/s", lanes("4815", range(6, 8))),
        "frames": ("how many frames each rank's batches have", frames),
        "program": ("the program's source", source("4815"))})
