"""Exercises of notebook 00: the command for a machine, and when a slow start is paid back. What a command means comes
from torchrun's own parser, not from a copy of its rules."""

import math

from course.checks import Wrong, exercise
from course.checks.cases import exactly, misses
from course.checks.commands import parsed


# Exercise 1: which way when
def my_command(nodes, devices):
    if nodes == devices == 1:
        return "python main.py"
    if nodes == 1:
        return f"torchrun --nproc_per_node={devices} main.py"
    meet = "--rdzv-backend=c10d --rdzv-id=1 --rdzv-endpoint=FIRST_NODE:29400"
    return f"torchrun --nnodes={nodes} --nproc_per_node={devices} {meet} main.py"


def but_in_one_machine(command):
    """The mistake of saying `command` for several devices in one machine."""
    return lambda nodes, devices: command.format(devices) if nodes == 1 < devices else my_command(nodes, devices)


@exercise(
    solution=my_command,
    hint="Three cases: one device, several devices in one machine, several machines. The table of commands has a line "
    "for each. How many processes does torchrun start on EACH machine? FIRST_NODE:29400 is where the machines meet.",
    mistakes={
        "one process": lambda nodes, devices: "python main.py",
        "DataParallel": but_in_one_machine("python main.py --strategy dp"),
        "options behind main.py": but_in_one_machine("torchrun main.py --nproc_per_node={}"),
        "all ranks on each machine": lambda nodes, devices: my_command(nodes, devices).replace(
            f"per_node={devices}", f"per_node={nodes * devices}"),
        "the other machines forgotten": lambda nodes, devices: my_command(1, devices),
        "nowhere to meet": lambda nodes, devices: f"torchrun --nnodes={nodes} --nproc_per_node={devices} main.py",
        "a first machine, and all of them number 0": lambda nodes, devices: (
            f"torchrun --nnodes={nodes} --nproc_per_node={devices} --master_addr=FIRST_NODE main.py"),
        "each machine for itself": lambda nodes, devices: my_command(nodes, devices).replace(
            "--rdzv-id", "--standalone --rdzv-id"),
        "each machine meets itself": lambda nodes, devices: my_command(nodes, devices).replace(
            "FIRST_NODE", "localhost"),
    },
)
def command(attempt):
    """Read by torchrun's own parser, your command starts one rank for each device, and several machines meet at the
    first one. Typed on each machine it is the same line, whatever the machine's number."""
    for nodes, devices in ((1, 1), (1, 8), (2, 8), (3, 4)):
        text = attempt(nodes, devices)
        case = f"{nodes} machine(s) with {devices} device(s) each: {text!r}"
        options = parsed(text)
        behind = options.training_script_args
        if not options.by_torchrun and ("dp" in behind or "--strategy=dp" in behind):
            raise Wrong(f"{case} is DataParallel: one process feeds all GPUs. It is kept for old code, and never "
                        "leaves its machine. Start a process for each device.")
        if "--nproc" in " ".join(behind):
            raise Wrong(f"{case}. What stands behind main.py goes to main.py, which does not know this option. "
                        "torchrun's own options stand before main.py.")
        if not options.by_torchrun:
            if nodes * devices > 1:
                raise Wrong(f"{case} starts one process, which uses one of the {nodes * devices} devices.")
            continue
        if not options.nproc_per_node.isdigit():
            raise Wrong(f"{case}. Give --nproc_per_node a number.")
        here, machines = int(options.nproc_per_node), options.nnodes.split(":")[-1]
        if here == nodes * devices != devices:
            raise Wrong(f"{case} starts {here} processes on each machine, {nodes * here} together. --nproc_per_node "
                        f"counts those of one machine, which has {devices} devices.")
        if here != devices:
            raise Wrong(f"{case} starts {here} process(es) on a machine with {devices} devices.")
        if machines != str(nodes):
            raise Wrong(f"{case} is a job of {machines} machine(s). Typed on {nodes}, it starts {nodes} jobs that know "
                        f"nothing of each other, and train {nodes} models. --nnodes says how many belong together.")
        if nodes == 1:
            continue
        if options.standalone:
            raise Wrong(f"{case}. --standalone is for a job in one machine: each would start a job of its own.")
        place = options.rdzv_endpoint.split(":")[0]
        if options.rdzv_backend == "static" and (place or options.master_addr not in ("localhost", "127.0.0.1")):
            raise Wrong(f"{case}. The machines know where to meet, but each would say that it is number "
                        f"{options.node_rank}. With --rdzv-backend=c10d, --rdzv-endpoint and a --rdzv-id they agree on "
                        "their numbers.")
        if options.rdzv_backend == "static" or not place:
            raise Wrong(f"{case}. The machines do not know where to meet, and each would wait in silence. They need "
                        "--rdzv-backend=c10d, --rdzv-endpoint=FIRST_NODE:29400, and a --rdzv-id.")
        if place in ("localhost", "127.0.0.1"):
            raise Wrong(f"{case}. On each machine, {place} is that machine: each would wait for the others at its own "
                        "door. Give the name of one of them.")


# Exercise 2: when a slow start pays
def my_epochs(start_one, epoch_one, start_many, epoch_many):
    saved = epoch_one - epoch_many  # in each epoch
    if saved <= 0:
        return None
    return max(1, math.ceil((start_many - start_one) / saved))


def totals(epochs, start_one, epoch_one, start_many, epoch_many):
    """The seconds of both commands."""
    return start_one + epochs * epoch_one, start_many + epochs * epoch_many


def tried_out(*times):
    """What is right: one number of epochs after the other."""
    for epochs in range(1, 1000):
        one, many = totals(epochs, *times)
        if many < one:
            return epochs
    return None


@exercise(
    solution=my_epochs,
    hint="How many seconds more does the second command need to start? How many does it save in each epoch? How many "
    "epochs until it has saved what it cost? And what if it saves nothing?",
    mistakes={
        "the start ignored": lambda start_one, epoch_one, start_many, epoch_many: (
            1 if epoch_many < epoch_one else None),
        "the whole start instead of what it takes longer": lambda start_one, *others: my_epochs(0, *others),
        "rounded down": lambda *times: my_epochs(*times) and my_epochs(*times) - 1,
        "not rounded": lambda start_one, epoch_one, start_many, epoch_many: (
            max(1, (start_many - start_one) / (epoch_one - epoch_many)) if epoch_many < epoch_one else None),
        "never forgotten": lambda *times: my_epochs(*times) or 1,
        "a run without epochs": lambda start_one, epoch_one, start_many, epoch_many: (
            my_epochs(start_one, epoch_one, start_many, epoch_many) if start_many > start_one else 0),
    },
)
def pays(attempt):
    """Your number is where the longer start is paid back, on every case tried: a job with fewer epochs is done sooner
    by one process, however many devices there are."""
    cases = (3.0, 2.0, 7.0, 1.1), (2.0, 10.0, 10.0, 4.0), (4.0, 3.0, 3.9, 1.0), (3.0, 2.0, 5.0, 2.4)
    for miss in misses(pays, attempt, cases, tried_out, exactly):
        (start_one, epoch_one, start_many, epoch_many), got = miss.asked, miss.got
        case = (f"One process starts in {start_one:g} s and takes {epoch_one:g} s an epoch, the ranks start in "
                f"{start_many:g} s and take {epoch_many:g} s an epoch: you said {got}.")
        if miss.right is None:
            raise Wrong(f"{case} Here the ranks lose time in every epoch too. They never pay: None.")
        if got is None:
            raise Wrong(f"{case} But the ranks save {epoch_one - epoch_many:g} s in each epoch: some day they pay.")
        if got < 1:
            raise Wrong(f"{case} A job has at least one epoch.")
        if got % 1:
            raise Wrong(f"{case} An epoch is begun or it is not: give a whole number.")
        one, many = totals(got, *miss.asked)
        if many > one:
            start = " Each epoch is shorter, but the start is longer." if got == 1 else ""
            raise Wrong(f"{case} With {got} epoch(s) one process is done after {one:.1f} s, and the ranks after "
                        f"{many:.1f} s.{start}")
        one, many = totals(got - 1, *miss.asked)
        raise Wrong(f"{case} But {got - 1} epoch(s) are enough: {many:.1f} s against {one:.1f} s. One process has to "
                    "start, too: what counts is how much longer the ranks take for it.")
