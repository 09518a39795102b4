"""The report on the diaries of all ranks: findings, where the time went, what was not judged."""

import dataclasses
import json
import os
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

from . import __version__, detectors
from .detectors import BECAUSE, LEVELS, Finding, notes


@dataclass
class Report:
    findings: list[Finding]
    facts: list[str]  # how many images an update, where the time went
    unjudged: list[str]  # what this run could not show


def judge(diaries, world_size):
    """The Report on {rank: diary}. A rank that left none is a finding of its own."""
    known = [diaries[rank] for rank in sorted(diaries) if "facts" in diaries[rank]]
    last_words = [words for words in diaries.values() if "facts" not in words]
    checks = (detectors.ONE_IS_ENOUGH + (detectors.COMPARING if len(known) > 1 else [])
              + (detectors.OF_ALL if len(known) == world_size > 1 else []))
    findings = [*detectors.silent(known, world_size, last_words), *detectors.no_group(known, world_size),
                *(finding for check in checks for finding in check(known))]
    return Report(causes(findings), list(facts(known, world_size)), list(unjudged(known, world_size)))


def causes(findings):
    """The findings that do not only follow from others: a crash first, then the gravest."""
    names = {finding.name for finding in findings}
    crashes = {"crashed", "wrong_traceback", *(finding.name for finding in detectors.ERRORS.values())}
    return sorted((finding for finding in findings if not names & set(BECAUSE.get(finding.name, ()))),
                  key=lambda finding: (finding.name not in crashes, LEVELS.index(finding.level)))


def facts(diaries, world_size):
    for diary in diaries:
        if diary["ended"] and not detectors.ended_well(diary):
            yield f"rank {diary['rank']}: {detectors.standing(diary)}."
    first = diaries[0]
    batches = [read["batch"] for read in notes(first, "pass") if read["trained"] and read["batch"]]
    rates = [fact["rates"][0] for fact in notes(first, "optimizer") if fact["rates"]]
    if batches and rates:
        yield (f"{first['steps']:,} updates, each of {world_size} x {batches[0]} = "
               f"{world_size * batches[0]} samples, with a learning rate of {rates[0]:g}.")
    waited = []
    for diary in diaries:
        spent, whole = diary["seconds"], diary["seconds"]["all"]
        data, backward, tail = (spent.get(what, 0) / whole for what in ("data", "backward", "tail"))
        other = ("data", "backward", "tail", "all", "DDP", "spawn")
        talking = sum(seconds for what, seconds in spent.items() if what not in other) / whole
        waited.append(backward + talking)
        yield (f"rank {diary['rank']}: {whole:.1f} s, of which {data:.0%} waiting for data, "
               f"{backward:.0%} in backward ({tail:.0%} after its last gradient), "
               f"{talking:.0%} in collectives.")
    least = min(waited)
    if max(waited) - least > 0.1 and any(diary["steps"] > 10 for diary in diaries):
        yield (f"The others waited for rank {diaries[waited.index(least)]['rank']}: of all ranks it "
               "spends the smallest share of its time in backward and collectives, "
               f"{100 * least:.0f} %.")


def unjudged(diaries, world_size):
    first = diaries[0]
    weights, passes = notes(first, "weights"), notes(first, "pass")
    if world_size == 1:
        yield "Only one rank ran: what differs between ranks could not be seen."
    if not notes(first, "group"):
        yield "It made no process group."
    for fact in notes(first, "group"):
        if fact["ranks"] != world_size:
            yield f"Its process group at {fact['where']} has {fact['ranks']} of the {world_size} ranks."
    if not notes(first, "optimizer"):
        yield "No optimizer of torch.optim made a step: which parameters it holds was not looked at."
    if not weights:
        yield "No model was trained: weights were not compared."
    elif any(not fact["digest"] for fact in weights):
        yield "Some weights have no values of their own (sharded, lazy, meta): they were not compared."
    for fact in notes(first, "alone"):
        yield f"The ranks' diaries could not be put together ({fact['error']}): each was judged alone."
    for fact in notes(first, "failed"):
        yield f"The doctor's own look at `{fact['what']}` failed: {fact['error']}"
    for line in sorted({read["where"] for read in passes if read["unseen"]}):
        yield f"Which samples a sampler of your own draws could not be seen: {line}."
    for facts in zip(*(notes(diary, "workers") for diary in diaries), strict=False):
        if len(diaries) > 1 and len({fact["state"] for fact in facts}) == 1:
            yield (f"The loader's workers begin with the same random numbers on all ranks, at {facts[0]['where']}: if "
                   "your data set draws any, the ranks draw the same. What a worker draws could not be seen.")
    for fact in notes(first, "full"):
        yield f"More samples were drawn than are kept: from {fact['where']} on they were not compared."
    if detectors.averages_weights(first) or notes(first, "wrapped") and not detectors.over_all(diaries):
        yield "The ranks average weights, or work in groups: their weights were not compared."
    if not any(read["trained"] for read in passes):
        yield "No DataLoader was read in training: the ranks' data was not compared."
    if sum(read["trained"] for read in passes) == 1:
        yield "It trained for one epoch: set_epoch could not be judged."
    if not any(read["whole"] and not read["trained"] for read in passes):
        yield "It evaluated no DataLoader to its end."


def indented(text):
    return textwrap.wrap(text, 110, initial_indent="    ", subsequent_indent="    ", break_long_words=False,
                         break_on_hyphens=False)


def as_text(report):
    lines = [""]
    for finding in report.findings:
        lines.append(f"doctor: {finding.level}: {finding.where or '(no line)'}: {finding.name}")
        lines += indented(f"{finding.seen} {finding.means} Repair: {finding.repair}")
        lines += [f"    More: {finding.entry}"] * bool(finding.entry)
    count = len(report.findings)
    summary = f"{count} finding{'s' * (count > 1)}" if count else "nothing found"
    lines.append(f"doctor: {summary}.")
    lines += [f"    {line}" for line in report.facts]
    if report.unjudged:
        lines += ["doctor: not judged:", *(f"    {line}" for line in report.unjudged)]
    return "\n".join(lines)


def publish(report, file):
    """Write the report to stderr, and as JSON to `file` if there is one; the number of findings."""
    sys.stdout.flush()
    sys.stderr.write(f"{as_text(report)}\n")  # the script may have replaced print
    sys.stderr.flush()
    if file:
        part = file.with_name(f"{file.name}.{os.getpid()}.part")
        part.write_text(json.dumps({"doctor": __version__, **dataclasses.asdict(report)}, indent=1) + "\n")
        part.replace(file)
    torchruns = Path(os.environ.get("TORCHELASTIC_ERROR_FILE", os.devnull))  # what torchrun prints last of this rank
    if report.findings and not torchruns.exists():  # else @record has written its traceback
        names = ", ".join(finding.name for finding in report.findings)
        torchruns.write_text(json.dumps({"message": {"message": f"The doctor found {names}: see its report above.",
                                                     "extraInfo": {"timestamp": int(time.time())}}}))
    return len(report.findings)
