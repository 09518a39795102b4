"""Lesson 02: the schematic of a step, what the real nn.DataParallel did here, and what a step costs."""

from statistics import median

from course.lesson import some

ALONE = ("scatter", "replicate", "gather", "loss", "update")  # what one thread, or device 0, does for all


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
    whole, alone = sum(middle.values()), sum(middle[phase] for phase in middle if phase in ALONE)
    rows = [(phase, "device 0" if phase in ALONE else "all devices", length) for phase, length in middle.items()]
    rows.append(("**the whole step**", f"**device 0 alone: {alone / whole:.0%}**", whole))
    return [{"step": step, "who works, on GPUs": works, "ms": f"{1000 * length:.2f}", "share": f"{length / whole:.0%}"}
            for step, works, length in rows]


def speedups(measured):
    """A row for each kind of work, from {(work, workers): seconds of several runs}: the fastest, disturbed least."""
    rows = {}
    for (work, workers), seconds in measured.items():
        rows.setdefault(work, {})[workers] = 1000 * min(seconds)
    return [{"work": work} | {f"{some(workers, 'worker')}, ms": f"{ms:.0f}" for workers, ms in of.items()}
            | {"times as fast": f"{of[min(of)] / of[max(of)]:.2f}"} for work, of in rows.items()]
