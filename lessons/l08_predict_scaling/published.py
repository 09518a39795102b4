"""Machines that others have measured: results/recorded/published, and what the model of scaling.py says of them."""

import json
from pathlib import Path

from course.predict.fit import BUS_FACTORS
from course.predict.scaling import Hierarchy, Job, Link, StepTime, ddp_buckets, speedup

FOLDER = Path(__file__).resolve().parents[2] / "results" / "recorded" / "published"


def series():
    """{name: what was published of a series of runs}; the README beside the file says where, and in which units."""
    return json.loads((FOLDER / "scaling.json").read_text(encoding="utf-8"))


def efficiency(one):
    """{GPUs: efficiency} as published; 1 at the smallest run."""
    return {int(gpus): reached for gpus, reached in one["efficiency"].items()}


def latencies(links, message, one_node, all_nodes, nodes):
    """(within, between): seconds that a message costs however short, in a node and between nodes.

    From the busbw of one short message, in a table with `system`, `ranks`, `bytes` and `busbw` (GB/s): as if its whole
    time were the latencies of a ring within each node and of one over the nodes (scaling.Hierarchy).
    """
    def seconds(system):
        row = links[(links["system"] == system) & (links["bytes"] == message)].iloc[0]
        return BUS_FACTORS["all_reduce"](row["ranks"]) * message / (1e9 * row["busbw"]), row["ranks"]

    (in_node, local), (in_all, _) = seconds(one_node), seconds(all_nodes)
    return in_node / (2 * (local - 1)), (in_all - in_node) / (2 * (nodes - 1))


def job(one, within, between, share=1.0):
    """The Job of a published series, with these latencies, and a network that reaches `share` of its bandwidth."""
    base = min(efficiency(one))
    step = one["batch_size"] * base / one["images_per_second"]
    gradients = 4 * one["parameters"]
    links = Hierarchy(Link(within, one["nvlink"]), Link(between, share * one["network"]))
    return Job(StepTime(step, 0, one["backward"]), gradients, links, ddp_buckets(gradients),
               ranks_per_node=one["gpus_per_node"])


def band(one, within, between, share=1.0, most=1024):
    """{GPUs: (lowest, highest efficiency)}, 1 at the smallest run that was published.

    The highest is that of messages which cost nothing between nodes but their bytes, the lowest that of `between` for
    each, and of a network that reaches `share` of its nominal bandwidth.
    """
    base, found = min(efficiency(one)), {}
    jobs = [job(one, within, between, share), job(one, within, 0)]
    gpus = base
    while gpus <= most:
        found[gpus] = tuple(speedup(each, gpus, 1)[1] / speedup(each, base, 1)[1] for each in jobs)
        gpus *= 2
    return found
