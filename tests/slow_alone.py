#!/usr/bin/env python
"""Stands in for python in torchrun's ranks (PYTHON_EXEC): a group of torchft that trains alone waits in each step.

So a group that was killed is back before the other one has made its last step, even on a busy machine, where a start
takes ten times as long. Steps that both groups make together are not slowed, but for the one of the return.
"""

import runpy
import sys
import time

import torchft

SECONDS = 0.5
step = torchft.Optimizer.step


def slow_step(self, *arguments):
    if self.manager.num_participants() == 1:
        time.sleep(SECONDS)
    return step(self, *arguments)


torchft.Optimizer.step = slow_step
sys.argv = [one for one in sys.argv[1:] if one != "-u"]  # torchrun's
runpy.run_path(sys.argv[0], run_name="__main__")
