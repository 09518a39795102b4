"""Exercises of notebook 01: a clock that waits, rounds that are pairs, and what a faster part gains."""

import math
import statistics
import time
from functools import partial
from unittest import mock

import torch

from course.exercise import Case, Wrong, exercise, mistake
from lessons.start.ours.stopwatch import now


# Exercise 1: the stopwatch
class Machine:
    """A machine with a clock of its own, so that the verdict does not depend on this one. A GPU queues its work.

    queues: seconds until each GPU has done its work; none: there is no GPU.
    """

    def __init__(self, *queues: float):
        self.time, self.queues = 100.0, queues

    def perf_counter(self):
        return self.time

    def synchronize(self, device=None):
        if not self.queues:
            raise AssertionError("Torch not compiled with CUDA enabled")
        gpu = device if isinstance(device, int) else torch.device(device or "cuda").index or 0
        self.time = max(self.time, 100 + self.queues[gpu])

    def ask(self, answer, device):
        """What the answer returns on this machine, whichever way its file has imported the two functions."""
        others = {time.perf_counter: self.perf_counter, torch.cuda.synchronize: self.synchronize}
        space = getattr(answer, "__globals__", {})
        own = {name: others[value] for name, value in space.items() if callable(value) and value in others}
        with (mock.patch.dict(space, own), mock.patch.object(time, "perf_counter", self.perf_counter),
              mock.patch.object(torch.cuda, "synchronize", self.synchronize),
              mock.patch.object(torch.cuda, "is_available", lambda: bool(self.queues))):
            return answer(device)


WAIT, READ = "torch.cuda.synchronize(device)", "return time.perf_counter()"


@exercise(
    solution=now,
    hint=(
        "A CPU has done the work when the call returns. A GPU only queues it. For which devices must you wait?",
        "Wait first, then look at the clock. Wait for the device that you were given: a machine may have "
        "several.",
        "`if device.type == \"cuda\":` wait, with `torch.cuda.synchronize(device)`. Then, on every device, "
        "return `time.perf_counter()`."),
    mistakes={
        "Nobody waits for the GPU: its call has returned, and its work goes on.": mistake(now, {WAIT: "pass"}),
        "You looked at the clock first, and waited then.":
            mistake(now, {"    if torch": "    early = time.perf_counter()\n    if torch", READ: "return early"}),
        "On a CPU there is no queue: the call has returned when the work is done. Ask `device.type`.":
            mistake(now, {'torch.device(device).type == "cuda"': "True"}),
        "Wait for this device, torch.cuda.synchronize(device): without it you wait for GPU 0.":
            mistake(now, {WAIT: "torch.cuda.synchronize()"}),
        "Return seconds, as the clock gives them.": mistake(now, {READ: "return 1000 * time.perf_counter()"}),
        "Use time.perf_counter(): time.time() may be set back while you measure.":
            mistake(now, {READ: "return time.time()"}),
    },
)
def stopwatch(answer):
    """Your clock shows the time when the work is done, on a CPU and on a GPU. From now on your program uses it."""
    for machine, device, kind, right in (
            (Machine(), torch.device("cpu"), "has no GPU, and all work is done at 100.000 s", 100.0),
            (Machine(0.0), torch.device("cuda", 0), "has a GPU that is idle at 100.000 s", 100.0),
            (Machine(0.04), torch.device("cuda", 0), "has a GPU that has done its work at 100.040 s", 100.04),
            (Machine(0.01, 0.04), torch.device("cuda", 1),
             "has two GPUs, which have done their work at 100.010 s and at 100.040 s", 100.04)):
        got = machine.ask(answer, device)
        yield Case(got if got is None or got < 1e6 else "another clock", right,
                   f"A machine {kind}. There now(torch.device('{device}')) should return {right:.3f}. It returned "
                   f"{got}.")
        yield Case(machine.time, right, f"A machine {kind}. Your function did not wait for that.")


# Exercise 2: rounds
def my_rounds(programs, rounds, now):
    for train in programs.values():
        train()
    seconds = {name: [] for name in programs}
    for number in range(rounds):
        names = list(programs) if number % 2 == 0 else list(programs)[::-1]
        for name in names:
            start = now()
            programs[name]()
            seconds[name].append(now() - start)
    return seconds


def one_after_the_other(programs, rounds, now):
    for train in programs.values():
        train()
    return {name: my_rounds({name: train}, rounds, now)[name] for name, train in programs.items()}


class Trainings:
    """Two trainings on a machine with a clock of its own: `before` takes 1.6 s, `after` 1 s."""

    def __init__(self, first=0.0, second=1.0, slow_from=math.inf):
        self.time, self.calls, self.trained = 0.0, 0, {"before": 0, "after": 0}
        self.first, self.second, self.slow_from = first, second, slow_from

    def train(self, name):
        self.time += {"before": 1.6, "after": 1.0}[name] * (self.second if self.calls % 2 else 1) * (
            2 if self.calls >= self.slow_from else 1) + (0 if self.trained[name] else self.first)
        self.calls, self.trained[name] = self.calls + 1, self.trained[name] + 1

    def now(self):
        return self.time


@exercise(
    solution=my_rounds,
    hint=(
        "Two loops: over the rounds, and within a round over the programs. What must happen before the first "
        "round?",
        "Before it call each program once, untimed. And if the first place in a round is a better one: who "
        "should have it in the second round?",
        "`names = list(programs)`, and `names.reverse()` after each round. For each name: `start = now()`, "
        "`programs[name]()`, and append `now() - start` to its list."),
    mistakes={
        "The first call of each program is a warm-up: make it before the first round, and do not time it.":
            mistake(my_rounds, {"    for train in programs.values():\n        train()\n": ""}),
        "Let the programs take turns: in each round each of them once. What slows the machine for a while then slows "
        "both.": one_after_the_other,
        "The place in a round may matter. Change the order from round to round, so that each program comes first "
        "equally often: a random order does not see to that.":
            mistake(my_rounds, {" if number % 2 == 0 else list(programs)[::-1]": ""}),
        "Look at the clock anew before each call.": mistake(my_rounds, {
            "    seconds =": "    start = now()\n    seconds =", "            start = now()\n": ""}),
        "Keep the seconds of every round: a list for each program.":
            lambda *given: {name: sum(seconds) for name, seconds in my_rounds(*given).items()},
    },
)
def rounds(answer):
    """Your programs take turns, in changing order, after a warm-up. What disturbs the machine for a while meets both,
    so the ratio of each pair stays what it is."""
    wanted = 6
    for disturbance, kind in (
            ({}, "Nothing disturbs the machine"),
            ({"first": 30.0}, "The first call of each program takes 30 s more, as if it compiled"),
            ({"slow_from": 9}, "After nine calls another program starts, and everything takes twice as long"),
            ({"second": 1.3}, "The second of each two calls takes 1.3 times as long")):
        machine = Trainings(**disturbance)
        got = answer({name: partial(machine.train, name) for name in machine.trained}, wanted, machine.now)
        if not (isinstance(got, dict) and got.keys() == machine.trained.keys()
                and all(isinstance(seconds, list) and len(seconds) == wanted for seconds in got.values())):
            raise Wrong(f"You were asked for {wanted} rounds of `before` and `after`. Return a dict with a list of "
                        f"{wanted} numbers for each of the two names. You returned {got}.")
        pairs = [before / after for before, after in zip(got["before"], got["after"], strict=True)]
        if "first" in disturbance:  # a median would hide it
            pairs = pairs[:1]
        yield Case(statistics.median(pairs), 1.6,
                   f"{kind}. `before` takes 1.6 times as long as `after`. Your pairs of rounds have the ratios "
                   f"{', '.join(f'{pair:.2f}' for pair in pairs)}.", rel_tol=0.08)


# Exercise 3: what a faster part gains
def my_gain(phases, name, times):
    before = sum(phases.values())
    return before / (before - phases[name] + phases[name] / times)


@exercise(
    solution=my_gain,
    hint=(
        "Add up seconds. How many does the step take before, and how many with this one phase shorter?",
        "Only `phases[name]` changes. \"Times as fast\" is a ratio of two times: which of them stands above?",
        "`old = sum(phases.values())`, `new = old - phases[name] + phases[name] / times`, and the ratio of the "
        "two."),
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
    """What you leave alone sets the limit. Even infinitely fast, a phase that is half of the step makes it twice as
    fast, and one that is 3 % of it hardly changes anything. This is Amdahl's law (1967)."""
    step = {"data": 1.0, "forward": 4.0, "backward": 6.0, "update": 1.0}
    for name, times in ("forward", 10), ("update", 10), ("backward", 2), ("backward", math.inf):
        before = sum(step.values())
        after = sum(ms / times if phase == name else ms for phase, ms in step.items())
        got = answer(dict(step), name, times)
        yield Case(got, before / after,
                   f"Of {step}, in milliseconds, {name} becomes {times:g} times as fast. You returned {got}. The step "
                   f"takes {before:g} ms before and {after:.3g} ms after, so {before / after:.3g} is right.")
