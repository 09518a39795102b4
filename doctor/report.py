"""The report on the records of all ranks: broken laws, where the time went, what was not judged; and `--explain`."""

import argparse
import dataclasses
import difflib
import json
import os
import re
import sys
import textwrap
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import __version__, laws
from .laws import ENTRIES, LAWS, WRONG, Finding, Record, notes, notes_of_all


@dataclass
class Report:
    findings: list[Finding]
    facts: list[str]  # how many images an update, where the time went
    unjudged: list[str]  # what this run could not show
    scale: dict[str, float] = field(default_factory=dict)  # {line of a loss: its factor}, for --scale


def judge(records: dict[int, Record], world_size: int) -> Report:
    """The Report on {rank: record}. A rank that left none is a finding of its own."""
    every = [records[rank] for rank in sorted(records)]
    known = [record for record in every if "events" in record] or [{**record, "events": {}} for record in every]
    for record in known:
        if record.get("killed"):  # its last state was old: count what it has written
            done = Counter(each["what"] for each in laws.syncs(record))
            forwards, backwards, steps = (done.pop(what, 0) for what in ("a forward of DDP", "backward", "an update"))
            record |= {"forwards": forwards, "backwards": backwards, "steps": steps, "calls": done.total()}
    return Report(list(laws.broken(known, world_size)), list(facts(known)), list(unjudged(known, world_size)),
                  laws.factors(known))


def facts(records: list[Record]) -> list[str]:
    lines = [f"rank {record['rank']}: {laws.standing(record)}." for record in records
             if record["ended"] and not laws.ended_well(record)]
    images = [read["images"] for passes in notes_of_all(records, "pass") for read in passes
              if read["trained"] and read["used"] + 1 >= read["batches"] - read["unused"]]
    steps, backwards = ([record[kind] for record in records] for kind in ("steps", "backwards"))
    rates = sorted({rate for fact in notes(records[0], "optimizer") for rate in fact["rates"]})
    if any(steps):
        many = f"{steps[0]:,} updates" if len(set(steps)) == 1 else f"updates: {laws.by_rank(records, steps)}"
        each = f", of {sum(images) / steps[0]:,.4g} samples on average" if images and len(set(steps)) == 1 and not any(
            record.get("killed") for record in records) else ""
        more = f", {max(backwards) / max(steps):.3g} backwards each" if max(backwards) > 1.05 * max(steps) else ""
        lines.append(f"{many}{each}{more}, with a learning rate of "
                     f"{', '.join(f'{rate:g}' for rate in rates) or 'its own'} at first.")
    waited = []
    for record in (record for record in records if not record.get("killed")):
        spent, whole = dict(record["seconds"]), record["seconds"]["all"]
        now = record["position"]
        if not record["ended"] and now["in"]:  # it still waits
            spent[now["in"]] = spent.get(now["in"], 0) + now["for"]
        data, backward, tail = (spent.get(what, 0) / whole for what in ("data", "backward", "tail"))
        other = ("data", "backward", "tail", "all", "DDP", "spawn", "load", "load_state_dict")
        talking = sum(seconds for what, seconds in spent.items() if what not in other) / whole
        waited.append(backward + talking)
        lines.append(f"rank {record['rank']}: {whole:.1f} s, of which {data:.0%} waiting for data, {backward:.0%} in "
                     f"backward ({tail:.0%} after its last gradient), {talking:.0%} in collectives.")
    if len(waited) == len(records) and max(waited) - min(waited) > 0.1 and max(steps) > 10:
        lines.append(f"The others waited for rank {records[waited.index(min(waited))]['rank']}: of all ranks it spends "
                     f"the smallest share of its time in backward and collectives, {100 * min(waited):.0f} %.")
    return lines


def unjudged(records: list[Record], world_size: int) -> list[str]:
    first, lines = records[0], []
    weights, passes = notes(first, "weights"), notes(first, "pass")
    if world_size == 1:
        lines.append("Only one rank ran: what differs between ranks could not be seen.")
    if not notes(first, "group"):
        lines.append("It made no process group.")
    lines += [f"Its process group at {fact['where']} has {fact['ranks']} of the {world_size} ranks."
              for fact in notes(first, "group") if fact["ranks"] != world_size]
    if not notes(first, "optimizer"):
        lines.append("No optimizer of torch.optim made a step: which parameters it holds was not looked at.")
    if not weights:
        lines.append("No model was trained: weights were not compared.")
    elif any(not fact["digest"] for fact in weights):
        lines.append("Some weights have no values of their own (sharded, lazy, meta): they were not compared.")
    lines += [f"The ranks' records could not be put together ({fact['error']}): each was judged alone."
              for fact in notes(first, "alone")]
    lines += [f"The doctor's own look at `{fact['what']}` failed: {fact['error']}" for fact in notes(first, "failed")]
    lines += [f"Which samples a sampler of your own draws was seen by the content of the first of them only: {line}."
              for line in sorted({read["where"] for read in passes if read["unseen"]})]
    for facts in zip(*notes_of_all(records, "workers"), strict=False):
        if len(records) > 1 and len({fact["state"] for fact in facts}) == 1:
            lines.append("The loader's workers begin with the same random numbers on all ranks, at "
                         f"{facts[0]['where']}: if your data set draws any, the ranks draw the same. What a worker "
                         "draws could not be seen.")
    lines += [f"More samples were drawn than are kept: from {fact['where']} on they were not compared."
              for fact in notes(first, "full")]
    if laws.averages_weights(first):
        lines.append("The ranks average weights after an update: their weights were not compared.")
    elif notes(first, "wrapped") and not laws.over_all(records):
        lines.append("DDP works in groups of some ranks: the weights were not compared.")
    if not any(read["trained"] for read in passes):
        lines.append("No DataLoader was read in training: the ranks' data was not compared.")
    if sum(read["trained"] and read["batches"] > 0 for read in passes) == 1:
        lines.append("It trained for one epoch: set_epoch could not be judged.")
    if not any(read["whole"] and not read["trained"] and read["batches"] for read in passes):
        lines.append("It evaluated no DataLoader to its end.")
    return lines


# -------------------------------------------------------------------------------------------------------------- as text


def indented(text: str) -> list[str]:
    return textwrap.wrap(text, 110, initial_indent="    ", subsequent_indent="    ", break_long_words=False,
                         break_on_hyphens=False)


def as_text(report: Report) -> str:
    lines = [""]
    first = next((finding for finding in report.findings if finding.level == WRONG), None)
    for finding in report.findings:
        lines.append(f"doctor: {finding.level}: {finding.where or '(no line)'}: {finding.name}")
        if finding.law and (first is None or finding is first or finding.level != WRONG or finding.law != first.law):
            lines.append(f"    Law {finding.law}, {LAWS[finding.law]}.")
        lines += indented(f"{finding.seen} {finding.means} Repair: {finding.repair}")
        lines += indented(f"Usually: {'; '.join(finding.usually)}.") if finding.usually else []
        lines += [f"    More: {finding.entry}"] * bool(finding.entry)
    count = len(report.findings)
    summary = f"{count} finding{'s' * (count > 1)}" if count else "nothing found"
    lines.append(f"doctor: {summary}.")
    lines += [f"    {line}" for line in report.facts]
    if report.unjudged:
        lines += ["doctor: not judged:", *(f"    {line}" for line in report.unjudged)]
    return "\n".join(lines)


def publish(report: Report, file: Path | None) -> int:
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


# ------------------------------------------------------------------------------------------------------------ --explain


def known() -> dict[str, list[dict[str, Any]]]:
    """{name: the forms of that finding}"""
    told = {name: {"law": 8, "level": WRONG, "seen": f'an error that says "{entry["says"]}"', "means": entry["why"],
                   "repair": entry["repair"]} for name, entry in ENTRIES.items() if entry.get("says")}
    forms: dict[str, list[dict[str, Any]]] = {}
    for form, texts in [*laws.TABLE.items(), *told.items(), ("wrong_traceback", laws.TABLE["crashed"])]:
        forms.setdefault(form.partition(",")[0], []).append(texts)
    return forms


class Explain(argparse.Action):
    """As --help: prints, and ends."""

    def __call__(self, parser: argparse.ArgumentParser, _: Any, name: Any, __: Any = None) -> None:
        forms = known()
        if name and name not in forms:
            near = ", ".join(difflib.get_close_matches(name, forms, cutoff=0.4))
            parser.error(f"there is no finding {name}; " + (f"near it: {near}" if near else "--explain lists all"))
        print(explained(name, forms[name]) if name else "\n".join(
            f"{name:22}{', '.join(levels)}" for name in sorted(forms)
            if (levels := dict.fromkeys(form["level"] for form in forms[name]))))
        parser.exit()


def explained(name: str, forms: list[dict[str, Any]]) -> str:
    lines = []
    for form in forms:
        law, level, *texts = (form[part] for part in ("law", "level", "seen", "means", "repair"))
        lines += [f"{name}: {level}", *indented(f"Law {law}: {LAWS[law]}."), *(
            line for word, text in zip(("Seen", "Means", "Repair"), texts, strict=True)
            for line in indented(f"{word}: {re.sub(r'{.*?}', '…', text)}"))]
    if entry := ENTRIES.get(name):
        lines += [*indented(f"Look: {entry['look']}"), f"    More: {entry['link']}"]
    return "\n".join(lines)
