"""Runs every puzzle's solution and typical mistakes on real ranks of gloo, with the page's judge.

    python site/puzzles/on_gloo.py verdicts.json    a list of [puzzle, mistake or -1, right, why]

Ranks are forked from this process, which has torch already, anew for each run: an answer that hangs disturbs no other.
"""

import importlib
import json
import os
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch  # noqa: E402  site/ must be on the path first
import torch.distributed as dist  # noqa: E402

from puzzles import judge  # noqa: E402
from puzzles.build import puzzles  # noqa: E402
from puzzles.engine import plain_values  # noqa: E402

HANG = timedelta(seconds=3)  # the longest wait for another rank


def rank_of(puzzle, source, rank, ranks, folder):
    """What a forked process does: it leaves a file with what the rank ends with, or with how it failed."""
    said = {"result": None, "failed": None}
    try:
        dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", ranks), rank=rank, world_size=ranks,
                                timeout=HANG)
        space = {"work": lambda ticks: None, "free": lambda tensor: tensor.set_()}
        exec(source, space)
        given = puzzle["case"](ranks)[0][rank]
        result = space[puzzle["NAME"]](*given)
        said["result"] = plain_values(given[0] if result is None else result)
    except Exception as error:
        said["failed"] = f"Rank {rank}: {type(error).__name__}: {error}"
    finally:
        Path(folder, str(rank)).write_text(json.dumps(said), encoding="utf-8")
        os._exit(0)  # gloo's threads may still wait for somebody


def why_wrong(puzzle, source):
    """None where the answer is right with every number of ranks."""
    for ranks in puzzle["RANKS"]:
        with tempfile.TemporaryDirectory() as folder:
            children = []
            for rank in range(ranks):
                children.append(os.fork())
                if not children[-1]:
                    rank_of(puzzle, source, rank, ranks, folder)
            for child in children:
                os.waitpid(child, 0)
            files = [Path(folder, str(rank)) for rank in range(ranks)]
            said = [json.loads(file.read_text(encoding="utf-8")) if file.exists() else
                    {"result": None, "failed": f"Rank {file.name} died."} for file in files]
        failed = [each["failed"] for each in said if each["failed"]]
        wrong = judge.why_wrong(puzzle, ranks, {"results": [each["result"] for each in said],
                                                "stop": {"text": failed[0]} if failed else None}, None)
        if wrong:
            return wrong[0]
    return None


def main():
    torch.set_num_threads(1)
    verdicts = []
    with tempfile.TemporaryDirectory() as folder:  # answers that later ones import
        sys.path.insert(0, folder)
        loaded = [judge.load(text, torch) for text, _ in puzzles()]
        for puzzle in loaded:
            Path(folder, f"{puzzle['NAME']}.py").write_text(puzzle["SOLUTION"], encoding="utf-8")
        importlib.invalidate_caches()
        for puzzle in loaded:
            runs = [(-1, puzzle["SOLUTION"])]
            runs += [(i, judge.mistaken(puzzle, edits)) for i, (edits, _, *where) in enumerate(puzzle["MISTAKES"])
                     if where != ["page only"]]
            for i, source in runs:
                why = why_wrong(puzzle, source)
                verdicts.append([puzzle["TITLE"], i, why is None, why])
    Path(sys.argv[1]).write_text(json.dumps(verdicts), encoding="utf-8")


if __name__ == "__main__":
    main()
