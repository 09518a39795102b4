"""Exercises of notebook 01: time a step, see which phase limits, and give each kind of output its loss."""

import math

import torch
from torch import nn

from scripts.checks import Wrong, exercise

# ---------------------------------------------------------------------------------- 1: seconds a step

STEP = 0.004  # seconds that a step of the device below takes


class Device:
    """Steps on a clock of their own, so that the verdict does not depend on what else this machine does just now.

    warm_up: so many first steps take 25 times as long. queued: step() returns early, as on a GPU, and wait() ends when
    the work is done. disturbed: each 20th step takes 30 times as long, as when another program runs.
    """

    def __init__(self, warm_up=0, queued=False, disturbed=False):
        self.warm_up, self.queued, self.disturbed = warm_up, queued, disturbed
        self.now = self.done = 0.0
        self.steps = self.looks = 0

    def step(self):
        self.steps += 1
        if self.steps > 100_000:
            raise Wrong("More than 100,000 steps, and no end. A hundred are enough.")
        seconds = STEP * (25 if self.steps <= self.warm_up else 1)
        if self.disturbed and self.steps % 20 == 0:
            seconds *= 30
        self.done = max(self.done, self.now) + seconds
        self.now += 0.01 * STEP if self.queued else seconds

    def wait(self):
        self.now = max(self.now, self.done)

    def clock(self):
        self.looks += 1
        return self.now


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


def warm_up_counted(step, wait, clock):
    start = clock()
    for _ in range(100):
        step()
    wait()
    return (clock() - start) / 100


def first_step(step, wait, clock):
    start = clock()
    step()
    wait()
    return clock() - start


def no_wait(step, wait, clock):
    for _ in range(10):
        step()
    seconds = []
    for _ in range(50):
        start = clock()
        step()
        seconds.append(clock() - start)
    return sorted(seconds)[len(seconds) // 2]


def mean_of_steps(step, wait, clock):
    for _ in range(10):
        step()
    wait()
    return warm_up_counted(step, wait, clock)


def all_steps_together(step, wait, clock):
    return 100 * mean_of_steps(step, wait, clock)


@exercise(
    solution=my_step_seconds,
    hint="Make ten steps that nobody times. Then time fifty, each by itself: wait, look at the clock, step, wait, look "
    "again. Return the median: sorted(seconds)[25], or statistics.median(seconds).",
    mistakes={
        "the warm-up counted": warm_up_counted,
        "the first step taken for all": first_step,
        "no waiting": no_wait,
        "the mean": mean_of_steps,
        "all steps together": all_steps_together,
    },
)
def step_seconds(attempt):
    """Your clock is not misled by a warm-up, by a device that only queues its work, or by steps that another program
    disturbs. All four devices that it timed take 4 ms for a step."""

    def measured(**device):
        device = Device(**device)
        seconds = float(attempt(device.step, device.wait, device.clock))
        if not device.steps:
            raise Wrong("Your function never calls step().")
        if not device.looks:
            raise Wrong("Use the clock that your function is given: clock() is the time in seconds.")
        return seconds, f"A step takes {1000 * STEP:g} ms, you measured {1000 * seconds:.3g} ms."

    def right(seconds):
        return math.isclose(seconds, STEP, rel_tol=0.05)

    seconds, said = measured()
    if not right(seconds):
        raise Wrong(f"{said} That was a device without any trap. Return the seconds of one step.")
    seconds, said = measured(warm_up=10)
    if not right(seconds):
        raise Wrong(f"{said} The first 10 steps of this device take longer. Make some steps before you time any.")
    seconds, said = measured(queued=True)
    if not right(seconds):
        raise Wrong(f"{said} This device only queues the work, and step() returns at once. Call wait() before you look "
                    "at the clock: before the step, so that it is idle, and after it, so that it is done.")
    seconds, said = measured(warm_up=10, queued=True, disturbed=True)
    if not right(seconds):
        raise Wrong(f"{said} Here one step in 20 is disturbed by another program, and takes 30 times as long. It is in "
                    "your result. Time each step by itself, and take the median.")


# ---------------------------------------------------------------------------------- 2: which phase limits


def my_gain(phases, name, times):
    before = sum(phases.values())
    return before / (before - phases[name] + phases[name] / times)


def gain_of_the_phase(phases, name, times):
    return times


def share_times_gain(phases, name, times):
    return times * phases[name] / sum(phases.values())


def weighted_gain(phases, name, times):
    share = phases[name] / sum(phases.values())
    return 1 - share + share * times


def new_share(phases, name, times):
    return 1 / my_gain(phases, name, times)


def phase_gone(phases, name, times):
    return my_gain(phases, name, math.inf)


@exercise(
    solution=my_gain,
    hint="Add up the seconds before. Then again with this one phase shorter: phases[name] / times. How many times does "
    "the second go into the first?",
    mistakes={
        "the gain of the phase alone": gain_of_the_phase,
        "the gain times the share": share_times_gain,
        "an average of gains": weighted_gain,
        "new time by old time": new_share,
        "as if the phase took no time at all": phase_gone,
    },
)
def gain(attempt):
    """What you leave alone sets the limit. Even infinitely fast, a phase that is half of the epoch makes it twice as
    fast, and one that is 3 % of it hardly changes anything. This is Amdahl's law; so look where the time goes before
    you make anything faster."""
    epoch = {"data": 6.0, "forward": 2.0, "backward": 3.0, "update": 1.0}
    for name, times in (("data", 10), ("update", 10), ("backward", 2), ("data", math.inf)):
        after = sum(seconds / times if phase == name else seconds for phase, seconds in epoch.items())
        truth, got = sum(epoch.values()) / after, float(attempt(dict(epoch), name, times))
        if math.isclose(got, truth, rel_tol=1e-6):
            continue
        case = f"Of {epoch}, {name} {times:g} times as fast: you said {got:.3g}."
        if math.isclose(got, 1 / truth):
            raise Wrong(f"{case} That is the new time by the old. How many times as FAST is old by new.")
        messages = {
            gain_of_the_phase: "Only this phase is so much faster. The others take as long as before.",
            share_times_gain: "A gain cannot be multiplied by a share of the time: add up the seconds.",
            weighted_gain: "Gains cannot be averaged: add up the seconds, then divide.",
            phase_gone: "That is the limit, as if the phase took no time at all.",
        }
        for mistake, message in messages.items():
            if math.isclose(got, mistake(epoch, name, times)):
                raise Wrong(f"{case} {message}")
        raise Wrong(f"{case} The epoch takes {sum(epoch.values()):g} s before and {after:.3g} s after.")


# ---------------------------------------------------------------------------------- 3: outputs and their loss


def my_loss(outputs, labels, kind):
    if kind == "probabilities":
        return nn.functional.nll_loss(outputs.log(), labels)
    return nn.functional.cross_entropy(outputs, labels)  # a log-softmax of log-probabilities changes nothing


def cross_entropy_for_all(outputs, labels, kind):
    return nn.functional.cross_entropy(outputs, labels)


def nll_for_all_but_logits(outputs, labels, kind):
    return (nn.functional.cross_entropy if kind == "logits" else nn.functional.nll_loss)(outputs, labels)


def nll_for_all(outputs, labels, kind):
    return nn.functional.nll_loss(outputs, labels)


def sum_of_losses(outputs, labels, kind):
    return my_loss(outputs, labels, kind) * len(labels)


@exercise(
    solution=my_loss,
    hint="The loss is the mean of -log(probability of the right class). nn.functional.nll_loss(x, labels) is the mean "
    "of -x at the right class: what must x be? nn.functional.cross_entropy takes a log-softmax of x first.",
    mistakes={
        "cross_entropy for all": cross_entropy_for_all,
        "probabilities without their logarithm": nll_for_all_but_logits,
        "nll_loss for all": nll_for_all,
        "the sum": sum_of_losses,
    },
)
def loss(attempt):
    """Three models that say the same have the same loss. A log-softmax applied twice does no harm: log-probabilities
    come out of it as they went in, so cross_entropy is right for them, too. A softmax applied twice is not one
    softmax."""
    logits = 3 * torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(6)
    truth = -logits.double().softmax(1)[range(6), labels].log().mean().item()  # by definition
    for kind, outputs in (("logits", logits), ("log-probabilities", logits.log_softmax(1)),
                          ("probabilities", logits.softmax(1))):
        twice = nn.functional.cross_entropy(outputs, labels).item()
        got = float(attempt(outputs, labels, kind))
        if math.isclose(got, truth, rel_tol=1e-4):
            continue
        case = f"For {kind} you gave {got:.4f}; the loss is {truth:.4f}."
        if math.isclose(got, truth * len(labels), rel_tol=1e-4):
            raise Wrong(f"{case} This is the sum over the images. CrossEntropyLoss gives the mean.")
        if kind == "probabilities" and math.isclose(got, twice, rel_tol=1e-4):
            raise Wrong(f"{case} cross_entropy takes a softmax, and these have had theirs. This is the mistake of the "
                        "lesson. Take the logarithm, and leave the second softmax out.")
        if math.isclose(got, float(nn.functional.nll_loss(outputs, labels)), rel_tol=1e-4):
            raise Wrong(f"{case} nll_loss takes no logarithm and no softmax, whatever its name says: it wants "
                        "log-probabilities.")
        raise Wrong(case)
