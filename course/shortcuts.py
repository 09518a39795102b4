"""What makes a class on one small machine faster, and has no place in a job of 64 GPUs: for ranks on a CPU with gloo.

Programs of the lessons take them; main.py knows none of them. Each says what it gains and what it costs.
"""

import ctypes
import importlib
import os
import sys
import types

import torch


def keep_memory():
    """Keep what is freed for the next step; True where the C library can (glibc: mallopt(3)).

    Gains: glibc gives large blocks back to the system when they are freed, and each step takes them anew, so that the
    system must clear and map every page again. That was a third of a step of the small ResNet; of LeNet's, nothing.
    Costs: memory that was used once stays with this process. To copy it without this
    file: `MALLOC_TRIM_THRESHOLD_=-1 MALLOC_MMAP_MAX_=0 python ...`.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    never_trim, no_mmap = (-1, -1), (-4, 0)  # M_TRIM_THRESHOLD, M_MMAP_MAX
    return bool(mallopt and mallopt(*never_trim) and mallopt(*no_mmap))


def defer_compiler():
    """Put a stand-in for torch._dynamo, which optimizers and DDP import only to be left alone by it.

    Gains: 2 ranks on two cores start in 4.9 s in place of 6.8, 8 ranks in 11.7 s in place of 19.8. Costs: it stands on
    names that torch does not promise, so a later version may bring in the real one after all, as any question does
    that the stand-in cannot answer. Call it after the ranks have met: joining the group brings in the real one. Not for
    programs that use torch.compile.
    """
    def real(name):
        if name == "__file__":  # inspect asks each module, also while torch imports what the real one needs
            raise AttributeError(name)
        if sys.modules.get("torch._dynamo") is stand_in:
            del sys.modules["torch._dynamo"], torch._dynamo
        return getattr(importlib.import_module("torch._dynamo"), name)

    if "torch._dynamo" not in sys.modules:
        stand_in = sys.modules["torch._dynamo"] = torch._dynamo = types.ModuleType("torch._dynamo")
        stand_in.utils = stand_in
        stand_in.get_optimize_ddp_mode = lambda: "no_optimization"
        stand_in.disable = lambda function, *args, **kwargs: function
        stand_in.graph_break = lambda *args, **kwargs: None
        stand_in.__getattr__ = real  # PEP 562


def exit_now():
    """End with status 0 and without Python's teardown.

    Gains: in that teardown a thread of gloo that still lets go of a tensor aborts the process ("terminate called
    without an active exception": torch 2.15, 1 run of 8 ranks in 15; https://github.com/pytorch/pytorch/pull/179291).
    Costs: what registers with atexit, as profilers, trackers and coverage do, is not called.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
