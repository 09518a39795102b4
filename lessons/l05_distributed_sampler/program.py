"""Of the learner's program: one part, and the network that it has trained."""

import ast
import runpy
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from course.on_ranks import theirs_or_ours


def part(name: str) -> tuple[Callable, str]:
    """The function `name` that mine/train.py calls, and whose it is: "yours", of mine/NAME.py, or "ours", where there
    is no such file."""
    return theirs_or_ours(Path(f"mine/{name}.py"), name, runpy.run_path(f"lessons/start/ours/{name}.py")[name])


def network(weights: Path) -> nn.Module:
    """The model of mine/train.py, which the learner may have changed, with the weights that `--save` has written."""
    program = ast.parse(Path("mine/train.py").read_text(encoding="utf-8"))
    [line] = [node for node in program.body if isinstance(node, ast.Assign) and ast.unparse(node.targets) == "model"]
    names = {"torch": torch, "nn": nn, "device": "cpu"}
    exec(ast.unparse(line), names)
    names["model"].load_state_dict(torch.load(weights, weights_only=True))
    return names["model"]
