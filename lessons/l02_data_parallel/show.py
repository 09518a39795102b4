"""Lesson 02: the schematic of a step, what the real nn.DataParallel did here, and what a step costs."""

from statistics import median

from course.lesson import some

DONE_BY = {"scatter": "device 0, for all", "replicate": "device 0, to all", "apply": "all devices",
           "gather": "all, to device 0", "loss": "device 0", "backward": "all devices", "update": "device 0"}  # on GPUs
GAIN = 1.3  # of two workers: less than this may be chance


def steps(devices, rows):
    """A box for each step and device that has work in it: what it has afterwards, and which devices that came from."""
    size = -(-rows // devices)
    pieces = [min(size, rows - start) for start in range(0, rows, size)]
    everyone = range(len(pieces))

    def boxes(step, has, sources):
        return [{"step": step, "device": device, "has": has.format(pieces[device]), "source": sorted(source)}
                for device, source in enumerate(sources)]

    from_first, from_all, own = [{0} for _ in everyone], [set(everyone)], [{device} for device in everyone]
    return [*boxes("batch", f"{rows}\nrows", [()]), *boxes("1. scatter", "{}\nrows", from_first),
            *boxes("2. replicate", "{} rows,\nweights", [{0, device} for device in everyone]),
            *boxes("3. apply", "{}\noutputs", own), *boxes("4. gather", f"{rows}\noutputs", from_all),
            *boxes("loss", "one loss", [{0}]), *boxes("backward", "gradients", from_first),
            *boxes("way back", "one\ngradient", from_all), *boxes("update", "new\nweights", [{0}])]


def forwards(gpus, rows):
    """How the real one split a batch: `rows` holds what each call of forward saw."""
    if gpus < 2:
        return (f"{'One GPU' if gpus else 'No GPU'} here: `forward` ran once, on all {sum(rows)} rows. `DataParallel` "
                "split nothing and **said nothing**.")
    return f"{gpus} GPUs here: `forward` ran {len(rows)} times, on {', '.join(map(str, sorted(rows)))} rows."


def phases(seconds):
    """A row for each phase of a step, from {phase: seconds} of several, the medians; and one for the whole step."""
    middle = {phase: median(step[phase] for step in seconds) for phase in seconds[0]}
    whole = sum(middle.values())
    return [{"step": step, "on GPUs this is done by": DONE_BY.get(step, ""), "ms here": f"{1000 * length:.2f}",
             "share here": f"{length / whole:.0%}"}
            for step, length in (middle | {"**the whole step**": whole}).items()]


def speedups(measured):
    """A row for each kind of work, from {(work, workers): seconds of several runs}: the fastest, disturbed least."""
    rows = {}
    for (work, workers), seconds in measured.items():
        rows.setdefault(work, {})[workers] = 1000 * min(seconds)
    return [{"work": work} | {f"{some(workers, 'worker')}, ms": f"{ms:.0f}" for workers, ms in of.items()}
            | {"times as fast": f"{of[min(of)] / of[max(of)]:.2f}"} for work, of in rows.items()]


def lock(threads, processes):
    """What two workers gained at Python's sums, threads and processes, says of the lock."""
    found = f"Two threads are {threads:.2f} times as fast as one, two processes {processes:.2f} times"
    if processes < GAIN:
        return f"{found}. Even processes gain little: the cores had other work. This run does **not** show the lock."
    if threads < GAIN:
        return f"{found}: the cores were there, but threads could not use both. **That is the lock.**"
    return f"{found}: threads gain, too. This Python has no lock, or the run was disturbed."
