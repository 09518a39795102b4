"""Exercises of lesson 10: one torchrun line for two hosts, and a job file for Slurm."""

import contextlib
import io
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from torch.distributed import run as torchrun

from course import processes, slurm
from course.exercise import Case, Wrong, edited, exercise, same
from course.hosts import Cluster
from lessons.l10_launchers import rehearsal, who

# A file is first rehearsed, with programs in the place of torchrun, srun and others that only note how they were
# called. Then it is run, where this machine can make hosts, with who.py in the place of mine/train.py.
LINE = 'torchrun --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint=$MASTER:29400 mine/train.py "$@"\n'
JOB = r"""#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000))
srun torchrun --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID \
  --rdzv-endpoint=$first:$port mine/train.py "$@"
"""
STATIC = edited(JOB, {"--rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID": "--node-rank=$SLURM_NODEID",
                      "--rdzv-endpoint=$first:$port": "--master-addr=$first --master-port=$port"})
ARGUMENTS = ["--epochs", "7"]
NAMES = ("torchrun", "python", "python3", "srun", "scontrol", "hostname")
SCRIPT = "mine/train.py"
RANKS = [f"rank {rank} of 4: {' '.join(ARGUMENTS)}" for rank in range(4)]


def text_of(answer):
    """The text of a file, or an answer that is a text; NotImplementedError where all of it is comments."""
    answer = answer() if callable(answer) else answer
    path = Path(str(answer))
    if path.suffix in (".sh", ".sbatch"):
        answer = path.read_text() if path.exists() else ""
    if all(not line.strip() or line.startswith("#") for line in answer.splitlines()):
        raise NotImplementedError
    return answer


def rehearse(text, **env):
    """The calls of torchrun, or of python, that the file makes, as rehearsal.py notes them; and its last words."""
    with tempfile.TemporaryDirectory() as folder:
        programs, calls = Path(folder, "programs"), Path(folder, "calls")
        programs.mkdir()
        calls.mkdir()
        for name in NAMES:
            (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{rehearsal.__file__}" {name} "$@"\n')
            (programs / name).chmod(0o755)
        known = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "PET_", "MASTER"))}
        with tempfile.TemporaryFile("w+", errors="replace") as errors:
            status = processes.run(["bash", "-c", text, "file", *ARGUMENTS], 20, uuid.uuid4().hex, cwd=folder,
                                   env={**known, "PATH": f"{programs}:{os.environ['PATH']}", "CALLS": calls, **env},
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
            if status is None:
                raise Wrong("Your file did not come to its end within 20 s, though nothing was started.")
            errors.seek(0)
            said = [line for line in errors if re.search("[a-z]", line)][-1:] or ["nothing"]
        noted = [json.loads(path.read_text()) for path in calls.iterdir()]
        return sorted(noted, key=lambda call: (call["HOST_NAME"], int(call["SLURM_PROCID"] or 0))), said[0].strip()


def read_by_torchrun(words):
    """torchrun's own reading of its words, a namespace; or a string, the error."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return torchrun.get_args_parser().parse_args(words)
    except SystemExit:  # argparse's way to give up
        return errors.getvalue().strip().partition("error: ")[2]


def started_by(call, first, static):
    """A Case for each setting of a torchrun: `first` is the host where all meet; `static`: this host's number, where it
    knows one."""
    options, here = read_by_torchrun(call["words"]), f"On {call['HOST_NAME']}"
    error = options if isinstance(options, str) else None
    yield Case(error, None, f"{here} torchrun does not understand its options: {error}.")
    if error is not None:
        return
    yield Case(options.training_script, SCRIPT, f"{here} torchrun starts {options.training_script}, not {SCRIPT}. The "
               "first word that is no option of torchrun is the script.")
    passed = options.training_script_args
    yield Case(passed, ARGUMENTS, f"The file was given the options {' '.join(ARGUMENTS)}, and the script got "
               f"{' '.join(passed) or 'none'}.")
    yield Case(options.standalone, False, f"{here} the job is standalone.")
    nodes = options.nnodes.removeprefix("2:")
    yield Case(nodes, "2", f"{here} torchrun would make a job of {options.nnodes} nodes; 2 is right.")
    yield Case(options.nproc_per_node, "2",
               f"{here} torchrun would start {options.nproc_per_node} rank(s) (--nproc-per-node); 2 is right.")
    if static is not None and options.rdzv_backend == "static":
        yield Case(options.node_rank, static, f"{here} --node-rank is {options.node_rank}; {static} is right.")
        place = f"{options.master_addr}:{options.master_port or 29500}"
    else:
        yield Case(options.rdzv_backend, "c10d", f"{here} the rendezvous is {options.rdzv_backend}, and node-rank "
                   f"{options.node_rank}; c10d needs no number of the node.")
        host, _, port = options.rdzv_endpoint.partition(":")
        place = f"{host}:{port or 29400}"
    yield Case(place.partition(":")[0], first, f"{here} torchrun would meet the others at {place}; {first} is right."
               if place[0] != ":" else f"{here} torchrun is not told the host where all meet; {first} is right.")


def places(calls):
    """Where the torchruns would meet, and under which name."""
    options = [read_by_torchrun(call["words"]) for call in calls if call["program"] == "torchrun"]
    return [(each.rdzv_endpoint or f"{each.master_addr}:{each.master_port or 29500}", each.rdzv_id) for each in options]


def together(calls):
    met = places(calls)
    return Case(len(set(met)), 1, "The hosts would not meet: they go to different places, or under different names, "
                f"{' and '.join(map(' '.join, met))}.")


def really(cases, why_not, run, where):
    """The cases; and where all are right, that of the real run, or why there is none."""
    yield from cases
    if all(same(case.got, case.right) for case in cases):
        if why_not:
            yield Case(None, None, "", remark=f"It was only read, and not run {where}, because {why_not}.")
        else:
            got, last = began(run())
            yield Case(got, RANKS, f"Run {where}, {len(got)} ranks began as they should, and 4 is right: "
                       f"{'; '.join(got) or 'none'}. The last output was: {last}",
                       remark=f"Run {where} it started {len(got)} ranks.")


def began(console):
    found, last = who.reports(console)
    return [f"rank {each['rank'].get('RANK')} of {each['rank'].get('WORLD_SIZE')}: {' '.join(each['words'])}"
            for each in found], last


def wait_for(done, seconds):
    give_up = time.monotonic() + seconds
    while not done() and time.monotonic() < give_up:
        time.sleep(0.1)


@contextlib.contextmanager
def folder_of_reporters():
    """A folder in which mine/train.py is who.py."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, SCRIPT).parent.mkdir()
        shutil.copy(who.__file__, Path(folder, SCRIPT))
        yield Path(folder)


def on_two_hosts(text):
    """What is printed where the text is typed on two hosts."""
    with folder_of_reporters() as folder, Cluster(2) as cluster:
        with open(folder / "output", "w") as output:
            started = [cluster.start(node, ["env", "-u", "NODE", "bash", "-c", text, "file", *ARGUMENTS], cwd=folder,
                                     stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
                       for node in (0, 1)]
            wait_for(lambda: all(process.poll() is not None for process in started), 60)
        return (folder / "output").read_text()


def by_slurm(text):
    """What is printed where the text is submitted to a Slurm of two nodes."""
    with folder_of_reporters() as folder, slurm.Slurm(2) as lab:
        (folder / "job.sbatch").write_text(text)
        done = lab.run(["sbatch", "--output=output", "job.sbatch", *ARGUMENTS], cwd=folder)
        if done.returncode == 0:
            wait_for(lambda: not lab.run(["squeue", "--noheader"]).stdout, 60)
        return done.stderr + ((folder / "output").read_text() if (folder / "output").exists() else "")


@exercise(
    solution=LINE,
    hint=("No host knows its number. So which kind of rendezvous is it, and what must both hosts then know alike?",
          "Before the script stand the number of nodes, the ranks of one node, the rendezvous's backend and its "
          "endpoint. Behind the script stands \"$@\".",
          "torchrun --nnodes=… --nproc-per-node=… --rdzv-backend=… --rdzv-endpoint=$MASTER:… mine/train.py \"$@\""),
    mistakes={
        "Four is the world size. --nproc-per-node counts the ranks of one node.":
            edited(LINE, {"--nproc-per-node=2": "--nproc-per-node=4"}),
        "The words after the script go to the script. torchrun's own options must come before it.":
            edited(LINE, {"--nnodes=2 ": "", '"$@"': '"$@" --nnodes=2'}),
        'The shell replaces "$@" by the options that the file was given. Pass them on to the script.':
            edited(LINE, {' "$@"': ""}),
        "--standalone is for a job on one node: each host would start a job of its own.":
            edited(LINE, {"torchrun": "torchrun --standalone"}),
        "Without --nnodes it would not wait for the other host.": edited(LINE, {"--nnodes=2 ": ""}),
        "A range lets nodes come and go: such a job may begin with one of them.":
            edited(LINE, {"--nnodes=2": "--nnodes=1:2"}),
        "Both hosts would say that they are node 0. No host knows its number here: take the rendezvous that gives out "
        "the numbers.": LINE.replace("--rdzv-backend=c10d --rdzv-endpoint=$MASTER:29400",
                                     "--master-addr=$MASTER --master-port=29500"),
        "Where is its --rdzv-endpoint?": edited(LINE, {"--rdzv-endpoint=$MASTER:29400 ": ""}),
        "localhost is each host itself, so they would not meet.": edited(LINE, {"$MASTER": "localhost"}),
        "Each host would wait at its own address. Both must go to the first host, $MASTER.":
            edited(LINE, {"$MASTER": "$(hostname)"}),
        "Each host would come under a name of its own.": edited(LINE, {"mine/": "--rdzv-id=$(hostname) mine/"}),
    },
    limit=180,  # it starts hosts and Slurm, which bound their own time
)
def line(answer):
    """Both hosts go to one endpoint under one name, and the rendezvous numbers them."""
    text, cases = text_of(answer), []
    for node in ("node0", "node1"):
        calls, said = rehearse(text, MASTER="node0", HOST_NAME=node)
        torchruns = [call for call in calls if call["program"] == "torchrun"]
        cases.append(Case(len(torchruns), 1, f"On {node} your file starts {len(torchruns)} torchruns; 1 is right. It "
                          f"said: {said}"))
        if len(torchruns) == 1:
            cases += [*started_by(torchruns[0], "node0", None)]
            if node == "node0":
                first = torchruns
            elif all(same(case.got, case.right) for case in cases):
                cases.append(together(first + torchruns))
    yield from really(cases, Cluster.available(), lambda: on_two_hosts(text), "on two hosts")


def rehearse_job(text, job):
    """The options of sbatch that it reads in the text, the calls that the job makes, and its last words."""
    directives = itertools.takewhile(lambda line: not line.strip() or line.startswith("#"), text.splitlines())
    words = "\n".join(line.removeprefix("#SBATCH") for line in directives if line.startswith("#SBATCH"))
    options = rehearsal.read(shlex.split(words, comments=True), command=False)
    nodes = options.nodes or "1"
    env = {"SLURM_JOB_NUM_NODES": nodes, "SLURM_NNODES": nodes, "SLURM_JOB_NODELIST": "node[1-2]",
           "SLURM_NODELIST": "node[1-2]", "SLURM_JOB_ID": job, "SLURM_JOBID": job, "SLURM_PROCID": "0",
           "SLURM_NODEID": "0", "SLURMD_NODENAME": "node1", "HOST_NAME": "node1",
           "TASKS": str(len(rehearsal.tasks(options, nodes, nodes)))}
    if options.cpus_per_task:
        env["SLURM_CPUS_PER_TASK"] = options.cpus_per_task
    return options, *rehearse(text, **env)


def of_job(text):
    """A Case for each thing that can go wrong in the file."""
    yield Case(text.startswith("#!"), True, "sbatch refuses the file: its first line must name the shell, #!/bin/bash.")
    options, calls, said = rehearse_job(text, "4711")
    yield Case(options.nodes, "2", f"sbatch reads --nodes={options.nodes or '1, its default'} in your file. It reads "
               "the #SBATCH lines above the first command alone.")
    launchers = [call for call in calls if call["program"] == "torchrun"]
    yield Case(bool(launchers), True, f"Your job starts no torchrun. It said: {said}")
    if not launchers:
        return
    outside = [call["program"] for call in launchers if not call["SLURM_STEP_ID"]]
    yield Case(outside, [], f"Without srun {' and '.join(outside)} runs on the first node only, as the file does.")
    hosts = [call["HOST_NAME"] for call in launchers]
    yield Case(hosts, ["node1", "node2"], f"torchrun is started on {', '.join(hosts)}; once on each of two nodes is "
               "right.")
    cases = [case for node, call in enumerate(launchers) for case in started_by(call, "node1", node)]
    yield from cases
    if all(same(case.got, case.right) for case in cases):
        yield together(launchers)
        jobs = "4711", "4712", "45999", "29832500"
        meet = [places(calls)[0][0] for calls in (launchers, *(rehearse_job(text, job)[1] for job in jobs[1:]))]
        for job, place in zip(jobs, meet, strict=True):
            port = place.partition(":")[2] or "29400"
            yield Case(port.isdigit() and 20000 <= int(port) <= 65535, True,
                       f"Job {job} would meet at port {port}; 20000 to 65535 are right.")
        twice = max(meet, key=meet.count)
        yield Case(meet.count(twice), 1, f"Two of your jobs would both meet at {twice}, also where they share a node.")


@exercise(
    solution=JOB,
    hint=("The file runs on the first node alone. What must run once on each node, and who starts it there?",
          "#!/bin/bash, then the #SBATCH lines, then three commands: the first host's name from scontrol, a port from "
          "$SLURM_JOB_ID, and srun with the torchrun of your line.",
          "first=$(scontrol show hostnames … | head -n 1); port=$((20000 + SLURM_JOB_ID % …)); srun torchrun … "
          "--rdzv-id=$SLURM_JOB_ID --rdzv-endpoint=$first:$port mine/train.py \"$@\""),
    mistakes={
        "The file itself runs on the first node. srun starts a command on all of them.": edited(JOB, {"srun ": ""}),
        "One torchrun per node starts all ranks of the node: one task per node.":
            edited(JOB, {"--ntasks-per-node=1": "--ntasks-per-node=2"}),
        "Put it into a line of its own, above the first command: #SBATCH --nodes=2.":
            edited(JOB, {"#SBATCH --nodes=2\n": ""}),
        "The first line is missing.": JOB.partition("\n")[2],
        "Make the port from $SLURM_JOB_ID.": edited(JOB, {"$port": "29400"}),
        "Job numbers grow far beyond 65535. Take a remainder.": edited(JOB, {" % 10000": ""}),
        "localhost is each node itself.": edited(JOB, {"$first": "localhost"}),
        "In Slurm no node is called node0, and nobody has set $MASTER. Which nodes the job got stands in "
        "$SLURM_JOB_NODELIST.": edited(JOB, {"$first": "$MASTER"}),
        "The shell of the first node has put in its own number, 0, before srun started anything. Let each node put in "
        "its own: srun bash -c '…'.": STATIC,
        'The shell replaces "$@" by the options that the file was given. Pass them on to the script; a bash -c gets '
        "them only behind its own command.":
            edited(JOB, {' "$@"': ""}),
        "Four is the world size. --nproc-per-node counts the ranks of one node.":
            edited(JOB, {"--nproc-per-node=2": "--nproc-per-node=4"}),
    },
    limit=180,
)
def job(answer):
    """srun starts one torchrun on each node; they meet on the job's first node, at a port that no other job has."""
    text = text_of(answer)
    why_not = slurm.missing() or Cluster.available()
    yield from really([*of_job(text)], why_not, lambda: by_slurm(text), "by a real Slurm")
