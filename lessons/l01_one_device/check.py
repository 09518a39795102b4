"""Exercises of notebook 01: time a step, see which phase limits, and give each kind of output its loss."""

import math

import torch
from torch import nn

from course.cases import drawn, drawn_one, misses
from course.exercise import Wrong, exercise

STEP = 0.004  # seconds that a step of the device below takes; a grader's: another


class Device:
    """Exercise 1: steps on a clock of their own, so that the verdict does not depend on what else this machine does.

    warm_up: so many first steps take 25 times as long. queued: step() returns early, as on a GPU, and wait() ends when
    the work is done. disturbed: one step in 20, that of this number, takes 30 times as long, as when another program
    runs.
    """

    def __init__(self, warm_up=0, queued=False, disturbed=None):
        self.warm_up, self.queued, self.disturbed = warm_up, queued, disturbed
        self.seconds = drawn_one(STEP, lambda random: random.uniform(0.005, 0.02))
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


def together(step, wait, clock, skipped=0, counted=100):
    """Seconds a step, of `counted` steps that are timed as one."""
    for _ in range(skipped):
        step()
    wait()
    start = clock()
    for _ in range(counted):
        step()
    wait()
    return (clock() - start) / counted


@exercise(
    solution=my_step_seconds,
    hint="Make ten steps that nobody times. Then time fifty, each by itself: wait, look at the clock, step, wait, look "
    "again. Return the median: sorted(seconds)[25], or statistics.median(seconds).",
    mistakes={
        "the warm-up counted": together,
        "the first step taken for all": lambda *device: together(*device, counted=1),
        "no waiting": lambda step, wait, clock: my_step_seconds(step, lambda: None, clock),
        "one step taken for all": lambda *device: together(*device, skipped=10, counted=1),
        "the mean": lambda *device: together(*device, skipped=10),
        "all steps together": lambda *device: 100 * together(*device, skipped=10),
    },
)
def step_seconds(attempt):
    """Your clock is not misled by a warm-up, by a device that only queues its work, or by steps that another program
    disturbs."""
    for device, trap in (
        (Device(), "That was a device without any trap. Return the seconds of one step."),
        (Device(warm_up=10), "The first 10 steps of this device take longer. Make some steps before you time any."),
        (Device(queued=True),
         "This device only queues the work, and step() returns at once. Call wait() before you look at the clock: "
         "before the step, so that it is idle, and after it, so that it is done."),
        *((Device(warm_up=10, queued=True, disturbed=number),
           "Here one step in 20 is disturbed by another program, and takes 30 times as long. It is in your result. "
           "Time each step by itself, and take the median.") for number in range(20)),  # wherever one looks
    ):
        seconds = float(attempt(device.step, device.wait, device.clock))
        if not device.steps:
            raise Wrong("Your function never calls step().")
        if not device.looks:
            raise Wrong("Use the clock that your function is given: clock() is the time in seconds.")
        if not math.isclose(seconds, device.seconds, rel_tol=0.05):
            raise Wrong(f"A step takes {1000 * device.seconds:.3g} ms, you measured {1000 * seconds:.3g} ms. {trap}")


# Exercise 2: which phase limits
def my_gain(phases, name, times):
    before = sum(phases.values())
    return before / (before - phases[name] + phases[name] / times)


@exercise(
    solution=my_gain,
    hint="Add up the seconds before. Then again with this one phase shorter: phases[name] / times. How many times does "
    "the second go into the first?",
    mistakes={
        "That is the new time by the old. How many times as FAST is old by new.": lambda *asked: 1 / my_gain(*asked),
        "Only this phase is so much faster. The others take as long as before.": lambda phases, name, times: times,
        "A gain cannot be multiplied by a share of the time: add up the seconds.":
            lambda phases, name, times: times * phases[name] / sum(phases.values()),
        "Gains cannot be averaged: add up the seconds, then divide.":
            lambda phases, name, times: 1 + (times - 1) * phases[name] / sum(phases.values()),
        "That is the limit, as if the phase took no time at all.":
            lambda phases, name, times: my_gain(phases, name, math.inf),
    },
)
def gain(attempt):
    """What you leave alone sets the limit. Even infinitely fast, a phase that is half of the epoch makes it twice as
    fast, and one that is 3 % of it hardly changes anything. This is Amdahl's law; so look where the time goes before
    you make anything faster."""
    epoch = {"data": 6.0, "forward": 2.0, "backward": 3.0, "update": 1.0}

    def right(phases, name, times):
        after = sum(seconds / times if phase == name else seconds for phase, seconds in phases.items())
        return sum(phases.values()) / after

    faster = ("data", 10), ("update", 10), ("backward", 2), ("data", math.inf)
    cases = drawn([(epoch, *phase) for phase in faster], lambda random: (
        {name: random.randint(8, 80) / 4 for name in epoch}, random.choice(list(epoch)), random.randint(2, 12)))
    for miss in misses(gain, attempt, cases, right):
        before = sum(miss.asked[0].values())
        miss.tell("Of {phases}, {name} {times:g} times as fast: you said {got:.3g}.",
                  "The epoch takes {before:g} s before and {after:.3g} s after.", before=before,
                  after=before / miss.right)


# Exercise 3: outputs and their loss
def my_loss(outputs, labels, kind):
    if kind == "probabilities":
        return nn.functional.nll_loss(outputs.log(), labels)
    return nn.functional.cross_entropy(outputs, labels)  # a log-softmax of log-probabilities changes nothing


@exercise(
    solution=my_loss,
    hint="The loss is the mean of -log(probability of the right class). nn.functional.nll_loss(x, labels) is the mean "
    "of -x at the right class: what must x be? nn.functional.cross_entropy takes a log-softmax of x first.",
    mistakes={
        "This is the sum over the images. CrossEntropyLoss gives the mean.":
            lambda outputs, labels, kind: my_loss(outputs, labels, kind) * len(labels),
        "cross_entropy takes a softmax, and these have had theirs. This is the mistake of the lesson. Take the "
        "logarithm, and leave the second softmax out.":
            lambda outputs, labels, kind: nn.functional.cross_entropy(outputs, labels),
        "nll_loss takes no logarithm, and wants one: give it outputs.log().":
            lambda outputs, labels, kind: (
                nn.functional.cross_entropy if kind == "logits" else nn.functional.nll_loss)(outputs, labels),
        "nll_loss takes no logarithm and no softmax, whatever its name says: it wants log-probabilities.":
            lambda outputs, labels, kind: nn.functional.nll_loss(outputs, labels),
    },
)
def loss(attempt):
    """Three models that say the same have the same loss. A log-softmax applied twice does no harm: log-probabilities
    come out of it as they went in, so cross_entropy is right for them, too. A softmax applied twice is not one
    softmax. And the logarithm of a probability that was rounded to 0 is -inf: one more reason to return logits."""
    for seed in drawn([0], lambda random: random.randrange(1, 10**6)):
        logits = 3 * torch.randn(6, 10, generator=torch.Generator().manual_seed(seed))
        labels = (torch.arange(6) + seed) % 10
        truth = -logits.double().softmax(1)[range(6), labels].log().mean().item()  # by definition
        cases = ((logits, labels, "logits"), (logits.log_softmax(1), labels, "log-probabilities"),
                 (logits.softmax(1), labels, "probabilities"))
        for miss in misses(loss, attempt, cases, lambda *asked, truth=truth: truth, rel_tol=1e-4):
            miss.tell("For {kind} you gave {got:.4f}; the loss is {truth:.4f}.", truth=truth)
