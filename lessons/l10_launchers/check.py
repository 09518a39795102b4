"""Exercises of lesson 10: a function for mp.spawn, three failed launches, a line for two hosts, a file for Slurm."""

import contextlib
import inspect
import io
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import uuid
from datetime import timedelta
from functools import partial
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import run as torchrun

from course import processes, slurm
from course.exercise import Case, Wrong, exercise, first_line, same
from course.hosts import Cluster
from course.on_ranks import exercise_on_ranks, patched
from course.rendezvous import free_port
from lessons.l10_launchers import rehearsal


# Exercise 1: a function for mp.spawn
def be_rank(rank, world_size, port, file):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size,
                            timeout=timedelta(seconds=30))
    total = torch.tensor(rank + 1)
    dist.all_reduce(total)
    if rank == 0:
        file.write_text(str(total.item()))
    dist.destroy_process_group()


def be_otherwise(change, *args):
    """`be_rank`, with some arguments of init_process_group changed; None: left out."""
    def init(backend, **asked):
        whole(backend, **{name: value for name, value in (asked | change).items() if value is not None})

    whole = dist.init_process_group
    with patched(be_rank, init_process_group=init):
        be_rank(*args)


def reads_the_environment(rank, world_size, port, file):
    be_otherwise({"rank": int(os.environ["RANK"])}, rank, world_size, port, file)


def no_group(rank, world_size, port, file):
    if rank == 0:
        file.write_text(str(rank + 1))


def returns_it(rank, world_size, port, file):
    be_rank(rank, world_size, port, Path(os.devnull))
    return world_size * (world_size + 1) // 2


def all_write(rank, world_size, port, file):
    be_rank(rank, world_size, port, Path(os.devnull))
    file.open("a").write(str(world_size * (world_size + 1) // 2))


def writes(text, rank, world_size, port, file):
    be_rank(rank, world_size, port, Path(os.devnull))
    if rank == 0:
        file.write_text(text)


def rank_0_alone(rank, world_size, port, file):
    with patched(be_rank, all_reduce=lambda total: None) if rank else contextlib.nullcontext():
        be_rank(rank, world_size, port, file)


def stays_in_the_group(rank, world_size, port, file):
    with mock.patch.object(dist, "destroy_process_group", lambda: None):
        be_rank(rank, world_size, port, file)


VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class CannotMeet(Exception):
    """The ranks asked for groups in which they would wait in vain."""


def right_request(rank, ranks):
    return {"init_method": "tcp://127.0.0.1:PORT", "world_size": ranks, "rank": rank, "timeout": "a timedelta"}


def measure_be_rank(function, context):
    """What it asks of init_process_group, and what it leaves behind. The ranks meet only if they can."""
    for name in VARIABLES:
        os.environ.pop(name, None)  # mp.spawn sets none
    port = context.gather("port", free_port() if context.rank == 0 else None)[0]
    file, init_process_group = Path(context.folder, "sum.txt"), dist.init_process_group
    measured = {"request": None, "error": None, "returned": None}

    def noted(*args, **kwargs):
        call = inspect.signature(init_process_group).bind(*args, **kwargs)
        asked = call.arguments
        request = {name: asked.get(name) for name in ("init_method", "world_size", "rank")}
        if isinstance(store := asked.get("store"), dist.TCPStore):
            request["init_method"] = f"tcp://{store.host}:{store.port}"
        elif request["init_method"] in (None, "env://"):  # the function may have set the variables itself
            env = {name: os.environ.get(name) for name in VARIABLES}
            request = {"init_method": env["MASTER_ADDR"] and f"tcp://{env['MASTER_ADDR']}:{env['MASTER_PORT']}",
                       **{name: request[name] if request[name] is not None else env[name.upper()] and
                          int(env[name.upper()]) for name in ("world_size", "rank")}}
        if re.fullmatch(rf"tcp://.*:{port}", str(request["init_method"])):
            request["init_method"] = "tcp://127.0.0.1:PORT"  # the port differs from run to run
        timeout = asked.get("timeout")
        measured["request"] = request | {"timeout": "a timedelta" if isinstance(timeout, timedelta) else timeout}
        requests = context.gather("request", measured["request"])
        if requests != [right_request(rank, context.world_size) for rank in range(context.world_size)]:
            raise CannotMeet
        call.arguments["timeout"] = timedelta(seconds=context.timeout)
        init_process_group(*call.args, **call.kwargs)

    try:
        with patched(function, init_process_group=noted):
            measured["returned"] = function(context.rank, context.world_size, port, file) is not None
    except NotImplementedError:
        raise
    except CannotMeet:
        pass
    except Exception as error:
        measured["error"] = first_line(error)
    if measured["request"] is None:
        context.gather("request", None)
    context.gather("done", True)
    return measured | {"file": file.read_text().strip() if file.exists() else None, "in group": dist.is_initialized()}


@exercise_on_ranks(
    measure_be_rank,
    solution=be_rank,
    group=False,
    hint="mp.spawn passes the number of the process first, and that is the rank. Nothing stands in the environment: "
    "name init_method, rank and world_size yourself. Then dist.all_reduce, a file that rank 0 writes, and "
    "dist.destroy_process_group().",
    mistakes={
        "Without a group no process can add up the numbers of all.": no_group,
        "mp.spawn sets no variable. It passes the number of the process as the first argument of your function.":
            reads_the_environment,
        "Without init_method torch takes env://, and nobody has set MASTER_ADDR and the other variables. mp.spawn "
        "gives a process its number and no more. Name the place: tcp://127.0.0.1 and the port.":
            partial(be_otherwise, {"init_method": None}),
        "An address does not tell a process which rank it is: give rank and world_size, too.":
            partial(be_otherwise, {"rank": None, "world_size": None}),
        "mp.spawn passes each process its number first: use it.": partial(be_otherwise, {"rank": 0}),
        "Each process would make a group of its own.": partial(be_otherwise, {"rank": 0, "world_size": 1}),
        "The port that your function is given is free. Another port may be in use by the next job.":
            partial(be_otherwise, {"init_method": "tcp://127.0.0.1:29500"}),
        "Without a timeout the others wait for half an hour if one process does not come.":
            partial(be_otherwise, {"timeout": None}),
        "torch wants a datetime.timedelta, such as timedelta(seconds=30).": partial(be_otherwise, {"timeout": 30}),
        "mp.spawn throws away the value that a function returns: leave the result in the file.": returns_it,
        "Every process has written into the file.": all_write,
        "That is rank 0's own number: all_reduce adds up the numbers of all.": partial(writes, "1"),
        "all_reduce returns nothing: it writes the sum into its tensor.": partial(writes, "None"),
        "all_reduce needs all processes: call it before `if rank == 0`.": rank_0_alone,
        "Call dist.destroy_process_group(). Without it torch warns, and with nccl the end may hang.":
            stays_in_the_group,
    },
)
def spawned(ranks):
    """Processes that were told nothing but their numbers made a group, added up, and one of them wrote the sum
    where the parent can read it."""
    n = len(ranks)
    errors = [measured["error"] for measured in ranks if measured["error"]]
    yield Case([error.split(":")[0] for error in errors], [], f"It raised {''.join(errors[:1])}.")
    requests = [measured["request"] for measured in ranks]
    callers = [rank for rank, request in enumerate(requests) if request]
    yield Case(callers, list(range(n)), f"Of {n} processes {len(callers)} call dist.init_process_group.")
    for name in right_request(0, n):
        got = [request and request[name] for request in requests]
        right = [right_request(rank, n)[name] for rank in range(n)]
        got_text, right_text = (", ".join(dict.fromkeys(map(str, values))) for values in (got, right))
        yield Case(got, right,
                   f"In the {n} processes init_process_group gets {name}={got_text}; {right_text} is right.")
    file, total = ranks[0]["file"], str(sum(range(1, n + 1)))
    file = total if file == f"{total}.0" else file
    left = "a return value" if file is None and any(measured["returned"] for measured in ranks) else file
    yield Case(left, total, "The file is not there." if file is None else f"The file holds {file!r}; {total} is right.")
    yield Case([measured["in group"] for measured in ranks], [False] * n,
               "The sum is right, but the processes do not leave the group.")


# Exercise 2: three launches that failed, results/recorded/failed-launches/
ANSWERS = {"A": "rank 1", "B": "node", "C": "port"}


@exercise(
    solution=ANSWERS,
    hint="Begin at the end of each. Is there a block that names the rank that failed first? Else the last line is the "
    "error, and the lines above it only say where it came from.",
    mistakes={
        "If rank 0 fails first, it stands in torchrun's last block, under Root Cause.":
            dict.fromkeys(ANSWERS, "rank 0"),
        "Rank 0 lost its connection to the rank that failed first. Which rank was that?": ANSWERS | {"A": "rank 0"},
        "If rank 1 fails first, it stands in torchrun's last block, under Root Cause.":
            dict.fromkeys(ANSWERS, "rank 1"),
        "If a port is taken, torchrun cannot listen: EADDRINUSE, address already in use.":
            dict.fromkeys(ANSWERS, "port"),
        "If a node does not come, the rendezvous ends by a timeout, before any rank has printed a word.":
            dict.fromkeys(ANSWERS, "node"),
        "If torchrun does not know an option, it prints its usage, and `error: unrecognized arguments`.":
            dict.fromkeys(ANSWERS, "option"),
    },
)
def failures(answer):
    """The last line of torchrun names the error; where ranks had begun, its Root Cause names the first that failed. In
    A rank 0 complains too, of a closed connection: it had waited for rank 1. `why_it_failed.py --log FILE` reads a
    console in this way."""
    causes, known = answer() if callable(answer) else answer, ("port", "node", "rank 0", "rank 1", "option")
    if not isinstance(causes, dict) or causes.keys() != ANSWERS.keys():
        raise Wrong('Answer with a dict that has the letters A, B and C, such as {"A": "port", …}.')
    if unknown := [cause for cause in causes.values() if cause not in known]:
        raise Wrong(f"There is no cause {unknown[0]!r}. The five are: {', '.join(known)}.")
    for letter, right in sorted(ANSWERS.items(), key=lambda each: causes[each[0]] == each[1]):  # wrong first
        yield Case(causes[letter], right, f"The cause of {letter} is not {causes[letter]!r}.")


# Exercises 3 and 4: a line for two hosts, and a file for Slurm. Each is first rehearsed, with programs in the place of
# torchrun, srun and others that only note how they were called; then run, where this machine can make hosts.
LINE = 'torchrun --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint=$MASTER:29400 main.py "$@"\n'
JOB = r"""#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000))
srun torchrun --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID \
  --rdzv-endpoint=$first:$port main.py "$@"
"""
STATIC = JOB.replace("--rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID", "--node-rank=$SLURM_NODEID").replace(
    "--rdzv-endpoint=$first:$port", "--master-addr=$first --master-port=$port")
ARGUMENTS = ["--epochs", "7"]
NAMES = ("torchrun", "python", "python3", "srun", "scontrol", "hostname")
# Stands for main.py where ranks are started: without torch a rank begins at once.
RANK = """import os, sys
rank, size = (os.environ.get(a, os.environ.get(b)) for a, b in (
    ("RANK", "SLURM_PROCID"), ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS")))
os.write(1, f"rank {rank} of {size}: {' '.join(sys.argv[1:])}\\n".encode())  # in one piece
"""
RANKS = [f"rank {rank} of 4: {' '.join(ARGUMENTS)}" for rank in range(4)]


def text_of(answer):
    """The text of a file, or an answer that is a text; NotImplementedError where all of it is comments."""
    answer = answer() if callable(answer) else answer
    if isinstance(answer, Path):
        answer = answer.read_text() if answer.exists() else ""
    if not isinstance(answer, str):
        raise Wrong(f"Give the check the path of your file; this is {answer!r}.")
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
    yield Case(options.training_script, "main.py",
               f"{here} torchrun starts {options.training_script}, not main.py. The first word that is no option of "
               "torchrun is the script.")
    passed = options.training_script_args
    yield Case(passed, ARGUMENTS, f"The file was given the options {' '.join(ARGUMENTS)}, and main.py got "
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
    return [(each.rdzv_endpoint or f"{each.master_addr}:{each.master_port}", each.rdzv_id) for each in options]


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
            got, last = run()
            yield Case(got, RANKS, f"Run {where}, {len(got)} ranks began as they should, and 4 is right: "
                       f"{'; '.join(got) or 'none'}. The last output was: {last}",
                       remark=f"Run {where} it started {len(got)} ranks.")


def began(console):
    return sorted(re.findall(r"rank \d+ of \d+: [-\w ]*\w", console)), (console.strip().splitlines() or ["nothing"])[-1]


def wait_for(done, seconds):
    give_up = time.monotonic() + seconds
    while not done() and time.monotonic() < give_up:
        time.sleep(0.1)


def on_two_hosts(text):
    """The ranks that said who they are, and the last line, where the text is typed on two hosts."""
    with tempfile.TemporaryDirectory() as folder, Cluster(2) as cluster:
        Path(folder, "main.py").write_text(RANK)
        with open(f"{folder}/output", "w") as output:
            started = [cluster.start(node, ["env", "-u", "NODE", "bash", "-c", text, "file", *ARGUMENTS], cwd=folder,
                                     stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
                       for node in (0, 1)]
            wait_for(lambda: all(process.poll() is not None for process in started), 60)
        return began(Path(folder, "output").read_text())


def by_slurm(text):
    """The same, where the text is submitted to Slurm."""
    with tempfile.TemporaryDirectory() as folder, slurm.Slurm(2) as lab:
        for name, content in ("main.py", RANK), ("job.sbatch", text), ("output", ""):
            Path(folder, name).write_text(content)
        done = lab.run(["sbatch", "--output=output", "job.sbatch", *ARGUMENTS], cwd=folder)
        if done.returncode == 0:
            wait_for(lambda: not lab.run(["squeue", "--noheader"]).stdout, 60)
        return began(done.stderr + Path(folder, "output").read_text())


@exercise(
    solution=LINE,
    hint="torchrun's options come first, then the script, then \"$@\". How many nodes are there, how many ranks start "
    "here, which rendezvous numbers the nodes by itself, and where do they meet?",
    mistakes={
        "Four is the world size. --nproc-per-node counts the ranks of one node.":
            LINE.replace("--nproc-per-node=2", "--nproc-per-node=4"),
        "The words after the script go to the script. torchrun's own options must come before it.":
            'torchrun --nproc-per-node=2 main.py "$@" --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=$MASTER:29400',
        'The shell replaces "$@" by the options that the file was given. Pass them on to main.py.':
            LINE.replace(' "$@"', ""),
        "--standalone is for a job on one node: each host would start a job of its own.":
            LINE.replace("torchrun", "torchrun --standalone"),
        "Without --nnodes it would not wait for the other host.": LINE.replace("--nnodes=2 ", ""),
        "A range lets nodes come and go: such a job may begin with one of them.":
            LINE.replace("--nnodes=2", "--nnodes=1:2"),
        "Both hosts would say that they are node 0. No host knows its number here: take the rendezvous that gives out "
        "the numbers.": LINE.replace("--rdzv-backend=c10d --rdzv-endpoint=$MASTER:29400",
                                     "--master-addr=$MASTER --master-port=29500"),
        "Where is its --rdzv-endpoint?": LINE.replace("--rdzv-endpoint=$MASTER:29400 ", ""),
        "localhost is each host itself, so they would not meet.": LINE.replace("$MASTER", "localhost"),
        "Each host would wait at its own address. Both must go to the first host, $MASTER.":
            LINE.replace("$MASTER", "$(hostname)"),
        "Each host would come under a name of its own.": LINE.replace("main.py", "--rdzv-id=$(hostname) main.py"),
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
    launchers = [call for call in calls if call["program"] == "torchrun"] or calls
    yield Case(bool(launchers), True, f"Your job starts no torchrun and no python. It said: {said}")
    if not launchers:
        return
    outside = [call["program"] for call in launchers if not call["SLURM_STEP_ID"]]
    yield Case(outside, [], f"Without srun {' and '.join(outside)} runs on the first node only, as the file does.")
    hosts, each = [call["HOST_NAME"] for call in launchers], 1 if launchers[0]["program"] == "torchrun" else 2
    yield Case(hosts, each * ["node1"] + each * ["node2"],
               f"{launchers[0]['program']} is started on {', '.join(hosts)}; "
               f"{'once on each of two nodes' if each == 1 else 'twice on each of two nodes'} is right.")
    if each == 2:  # every task is a rank, and main.py makes a port from the job's number
        for call in launchers:
            script = ["main.py", *ARGUMENTS]
            yield Case(call["words"], script,
                       f"python gets {' '.join(call['words'])}; {' '.join(script)} is right.")
        return
    cases = [case for node, call in enumerate(launchers) for case in started_by(call, "node1", node)]
    yield from cases
    if all(same(case.got, case.right) for case in cases):
        yield together(launchers)
        place, again = (places(each)[0][0] for each in (launchers, rehearse_job(text, "4712")[1]))
        yield Case(place == again, False, f"Two of your jobs would both meet at {place}, also where they share a node.")


@exercise(
    solution=JOB,
    hint="#!/bin/bash, then #SBATCH lines, then commands. `scontrol show hostnames \"$SLURM_JOB_NODELIST\"` prints the "
    "hosts, one a line; $SLURM_JOB_ID is a number that no other job has, and $((…)) computes. srun starts the torchrun "
    "of exercise 3 once on each node.",
    mistakes={
        "The file itself runs on the first node. srun starts a command on all of them.": JOB.replace("srun ", ""),
        "One torchrun a node starts all ranks of the node: one task a node.":
            JOB.replace("--ntasks-per-node=1", "--ntasks-per-node=2"),
        "Put it into a line of its own, above the first command: #SBATCH --nodes=2.":
            JOB.replace("#SBATCH --nodes=2\n", ""),
        "The first line is missing.": JOB.partition("\n")[2],
        "Make the port from $SLURM_JOB_ID.": JOB.replace("$port", "29400"),
        "localhost is each node itself.": JOB.replace("$first", "localhost"),
        "In Slurm no node is called node0, and nobody has set $MASTER. Which nodes the job got stands in "
        "$SLURM_JOB_NODELIST.": JOB.replace("$first", "$MASTER"),
        "The shell of the first node has put in its own number, 0, before srun started anything. Let each node put in "
        "its own: srun bash -c '…'.": STATIC,
        'The shell replaces "$@" by the options that the file was given. Pass them on to main.py; a bash -c gets '
        "them only behind its own command.":
            JOB.replace(' "$@"', ""),
        "Four is the world size. --nproc-per-node counts the ranks of one node.":
            JOB.replace("--nproc-per-node=2", "--nproc-per-node=4"),
    },
    limit=180,
)
def job(answer):
    """srun starts one torchrun on each node, or each rank itself; they meet on the job's first node, at a port that
    no other job has."""
    text = text_of(answer)
    why_not = slurm.missing() or Cluster.available()
    yield from really([*of_job(text)], why_not, lambda: by_slurm(text), "by a real Slurm")
