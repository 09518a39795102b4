"""Exercises of notebook 01: time a step, and see which phase limits."""

import math

from course.exercise import Case, Wrong, exercise


def number(returned):
    """What an answer returned, as a float."""
    if returned is None:
        raise Wrong("Your function returned None: it has no `return`, or nothing after it.")
    return float(returned)


# Exercise 1: seconds a step
def my_step_seconds(step, wait, clock):
    for _ in range(10):  # warm-up, left out
        step()
    seconds = []
    for _ in range(50):
        wait()
        start = clock()
        step()
        wait()
        seconds.append(clock() - start)
    return sorted(seconds)[len(seconds) // 2]


def mean_seconds(step, wait, clock, skipped=0, counted=100):
    """Seconds a step, of `counted` steps that are timed as one."""
    for _ in range(skipped):
        step()
    wait()
    start = clock()
    for _ in range(counted):
        step()
    wait()
    return (clock() - start) / counted


class Device:
    """A device whose steps take time on a clock of their own, so that the verdict does not depend on what else this
    machine does.

    warm_up: so many first steps take 25 times as long. queued: step() returns early, as on a GPU, and wait() ends when
    the work is done. disturbed: one step in 20, that of this number, takes 30 times as long, as when another program
    runs.
    """

    def __init__(self, warm_up=0, queued=False, disturbed=None):
        self.warm_up, self.queued, self.disturbed = warm_up, queued, disturbed
        self.seconds = 0.004  # of an undisturbed step
        self.now = self.done = 0.0
        self.steps = self.looks = 0

    def step(self):
        self.steps += 1
        if self.steps > 100_000:
            raise Wrong("More than 100,000 steps, and no end. A hundred are enough.")
        seconds = self.seconds * (25 if self.steps <= self.warm_up else 1)
        if self.steps % 20 == self.disturbed:
            seconds *= 30
        self.done = max(self.done, self.now) + seconds
        self.now += 0.01 * self.seconds if self.queued else seconds

    def wait(self):
        self.now = max(self.now, self.done)

    def clock(self):
        self.looks += 1
        return self.now


@exercise(
    solution=my_step_seconds,
    hint="Make ten steps that nobody times. Then time fifty, each by itself: wait, look at the clock, step, wait, look "
    "again. Return the median: sorted(seconds)[25], or statistics.median(seconds).",
    mistakes={
        "A mean contains the disturbed steps. Time each step by itself, and take the median.":
            lambda *device: mean_seconds(*device, skipped=10),
        "Make some steps before you time any.": mean_seconds,
        "The first step is the slowest of all. Make some steps that nobody times, then time many.":
            lambda *device: mean_seconds(*device, counted=1),
        "Call wait() before you look at the clock: before the step, so that the device is idle, and after it, so that "
        "the work is done.": lambda step, wait, clock: my_step_seconds(step, lambda: None, clock),
        "Time many steps, each by itself, and take the median.":
            lambda *device: mean_seconds(*device, skipped=10, counted=1),
        "That is the time of all steps together: divide by their number.":
            lambda *device: 100 * mean_seconds(*device, skipped=10),
    },
)
def step_seconds(answer):
    """Your clock is not misled by a warm-up, by a device that only queues its work, or by steps that another program
    disturbs."""
    for device, kind in (
        (Device(), "has no trap"),
        (Device(warm_up=10), "takes longer for its first 10 steps"),
        (Device(queued=True), "only queues the work: step() returns at once"),
        *((Device(warm_up=10, queued=True, disturbed=step),
           "warms up, queues the work, and takes 30 times as long for one step in 20, which another program disturbs")
          for step in range(20)),  # whichever step an answer times
    ):
        seconds = number(answer(device.step, device.wait, device.clock))
        yield Case(device.looks > 0, True, "Use the clock that your function is given: clock() is the time in seconds.")
        yield Case(device.steps > 2, True, f"Your function called step() {device.steps} time(s). A single step may be "
                                           "disturbed.")
        # A word, so that other numbers of steps are recognised as the same mistake.
        size = ("right" if math.isclose(seconds, device.seconds, rel_tol=0.05)
                else "too long" if seconds > device.seconds else "too short")
        yield Case(size, "right", f"This device {kind}. A step takes {1000 * device.seconds:.3g} ms, you measured "
                                  f"{1000 * seconds:.3g} ms.")


# Exercise 2: which phase limits
def my_gain(phases, name, times):
    before = sum(phases.values())
    return before / (before - phases[name] + phases[name] / times)


@exercise(
    solution=my_gain,
    hint="Add up the seconds of all phases. Add them up again, with this one phase shorter: phases[name] / times. How "
    "many times does the second sum go into the first?",
    mistakes={
        "You divided the new time by the old one. \"Times as fast\" is the old time divided by the new one.":
            lambda *case: 1 / my_gain(*case),
        "Only this phase is so much faster. The others take as long as before.": lambda phases, name, times: times,
        "A gain cannot be multiplied by a share of the time: add up the seconds.":
            lambda phases, name, times: times * phases[name] / sum(phases.values()),
        "Gains cannot be averaged: add up the seconds, then divide.":
            lambda phases, name, times: 1 + (times - 1) * phases[name] / sum(phases.values()),
        "That is the limit, as if the phase took no time at all.":
            lambda phases, name, times: my_gain(phases, name, math.inf),
    },
)
def gain(answer):
    """What you leave alone sets the limit. Even infinitely fast, a phase that is half of the epoch makes it twice as
    fast, and one that is 3 % of it hardly changes anything. This is Amdahl's law; so look where the time goes before
    you make anything faster."""
    epoch = {"data": 6.0, "forward": 2.0, "backward": 3.0, "update": 1.0}
    faster = ("data", 10), ("update", 10), ("backward", 2), ("data", math.inf)
    for phases, name, times in [(epoch, *phase) for phase in faster]:
        before = sum(phases.values())
        after = sum(seconds / times if phase == name else seconds for phase, seconds in phases.items())
        got = number(answer(dict(phases), name, times))
        yield Case(got, before / after,
                   f"Of {phases}, {name} becomes {times:g} times as fast. You returned {got:.3g}. The epoch takes "
                   f"{before:g} s before and {after:.3g} s after, so {before / after:.3g} is right.")
