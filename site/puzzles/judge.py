"""Is an answer right, what did it cost, and which typical mistake was it? The page and the gloo ranks ask the same.

A puzzle is a file of `list/`: names and values, and a function case(ranks) that gives each rank's arguments and what it
should end with. An outcome is what World.run returns; on gloo ranks it has no costs.
"""

from puzzles.engine import Torch, World, plain_values

HOLE, END = "# >>>", "# <<<"  # the learner writes what stands between them in a solution


def load(source, torch=None):
    """The puzzle of a file's text, a dict. torch: what its cases are made with."""
    puzzle = {"torch": torch or Torch(), "LIMIT": (), "COST": (1, 0), "USES": (), "FILE": None, "AT_HOME": ""}
    exec(source, puzzle)
    kept, code, hidden = [], [], False
    for line in puzzle["SOLUTION"].strip().split("\n"):
        if line.strip() == HOLE:
            hidden = True
            code.append(line.replace(HOLE, "...  # your lines"))
        elif line.strip() == END:
            hidden = False
        else:
            kept.append(line)
            if not hidden:
                code.append(line)
    puzzle["SOLUTION"], puzzle["CODE"] = "\n".join(kept) + "\n", "\n".join(code) + "\n"
    return puzzle


def mistaken(puzzle, edits):
    """The solution with the edits of a mistake."""
    text = puzzle["SOLUTION"]
    for old, new in edits:
        if old not in text:
            raise ValueError("no such line in %s: %s" % (puzzle["NAME"], old))
        text = text.replace(old, new)
    return text


def simulated(puzzle, source, ranks, used):
    return World(ranks, puzzle["COST"]).run(source, puzzle["NAME"], lambda rank: puzzle["case"](ranks)[0][rank], used)


def alike(found, wanted):
    if isinstance(wanted, (list, tuple)):
        return isinstance(found, (list, tuple)) and len(found) == len(wanted) and all(
            [alike(a, b) for a, b in zip(found, wanted)])
    return isinstance(found, (int, float)) and abs(found - wanted) <= 1e-4 * max(1, abs(wanted))


def flat(value):
    """All numbers in a list of lists."""
    return [number for each in value for number in flat(each)] if isinstance(value, (list, tuple)) else [value]


def why_wrong(puzzle, ranks, outcome, best):
    """None, or (why the outcome is wrong, [rank, cell] or None). best: the solution's costs; None on gloo."""
    if outcome["stop"]:
        return outcome["stop"]["text"], None
    results, wanted = outcome["results"], plain_values(puzzle["case"](ranks)[1])
    if "judge" in puzzle:
        text = puzzle["judge"](results, ranks)
        if text:
            return text, None
    else:
        for rank in range(ranks):
            found, want = flat(results[rank]), flat(wanted[rank])  # a number, or a tensor of one: either will do
            if not alike(found, want):
                if len(found) != len(want):
                    return "Rank %d ends with %s; wanted is %s." % (rank, told(found), told(want)), None
                cell = [alike(a, b) for a, b in zip(found, want)].index(False)
                return "Rank %d ends with %s; wanted is %s." % (rank, told(found), told(want)), [rank, cell]
    for what in puzzle["LIMIT"] if best else ():
        if outcome["costs"][what] > best[what] + 1e-9:
            return "The values are right. %s: %g, and %g will do." % (
                COSTS[what], outcome["costs"][what], best[what]), None
    return None


COSTS = {"time": "Time in ticks", "bytes": "Bytes that the busiest rank sends",
         "memory": "Values in tensors that the largest rank makes"}


def told(values):
    text = ", ".join(["%.4g" % value if isinstance(value, (int, float)) else str(value) for value in values])
    return text if len(values) == 1 else "[%s]" % text


def print_of(puzzle, ranks, outcome):
    """What two answers with the same mistake have in common."""
    stop = outcome["stop"]
    if stop:
        error = stop["text"].split(": ", 2)[-1] if stop["kind"] == "error" else None  # without its rank and line
        return [stop["kind"], stop.get("circle"), error]
    costs = [outcome["costs"][what] for what in puzzle["LIMIT"]]
    routes = sorted(set([(each["from"], each["to"]) for each in outcome["messages"]]))
    return [[told(flat(result)) for result in outcome["results"]], costs, routes]


def finer(outcome):
    """What tells apart two answers that end alike."""
    messages = outcome["messages"]
    return [outcome["costs"], [[each["from"], each["to"], each["begin"], each["values"]] for each in messages]]


def mistake_in(puzzle, outcomes, first, used):
    """The message of the typical mistake that behaves the same on the `first` case that is wrong, or None. Among
    several the one that is alike on more cases. outcomes: of all cases, {ranks: outcome}."""
    best, message = 0, None
    for edits, says, *_ in puzzle["MISTAKES"]:
        source, same = mistaken(puzzle, edits), 0
        for ranks in [first] + [each for each in puzzle["RANKS"] if each != first]:
            outcome = simulated(puzzle, source, ranks, used)
            alike_here = print_of(puzzle, ranks, outcome) == print_of(puzzle, ranks, outcomes[ranks])
            if ranks == first and not alike_here:
                break
            same += alike_here + (alike_here and finer(outcome) == finer(outcomes[ranks]))
        if same > best:
            best, message = same, says
    return message


def best_costs(puzzle, ranks, used):
    """What the solution costs, with the learner's answers to earlier puzzles."""
    known = puzzle.setdefault("known", {})
    if (ranks, tuple(used)) not in known:
        known[ranks, tuple(used)] = simulated(puzzle, puzzle["SOLUTION"], ranks, used)["costs"]
    return known[ranks, tuple(used)]


def check(puzzle, source, used=()):
    """Run an answer on each case. What is told is of the first that is wrong, or of the last. For JSON: right, why,
    cell, mistake (a typical one's message, or None), ranks, start, wanted, outcome, and best, the solution's costs."""
    outcomes, wrong = {}, None
    for ranks in puzzle["RANKS"]:
        outcomes[ranks] = simulated(puzzle, source, ranks, used)
        if not wrong:
            best, told_of = best_costs(puzzle, ranks, used), ranks
            wrong = why_wrong(puzzle, ranks, outcomes[ranks], best)
    outcome, ranks = outcomes[told_of], told_of
    stop, mistake = outcome["stop"], None
    if wrong and not (stop and stop["kind"] in ("syntax", "endless")):
        mistake = mistake_in(puzzle, outcomes, ranks, used)
    given, wanted = puzzle["case"](ranks)
    why, cell = wrong or ("", None)
    return {"right": not wrong, "why": why, "cell": cell, "ranks": ranks, "mistake": mistake,
            "start": [plain_values(each[0]) for each in given], "wanted": plain_values(wanted),
            "outcome": outcome, "best": best}
