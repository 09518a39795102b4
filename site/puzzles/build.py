"""The rank puzzles as one page that needs no server and no network.

    python site/puzzles/build.py [FILE]    build/puzzles.html, unless it is told another; less than 500 kB

Opened as puzzles.html#shard it begins with that puzzle.
"""

import base64
import gzip
import hashlib
import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))

from puzzles import judge  # noqa: E402  site/ must be on the path first, where this file is started alone
from puzzles.engine import plain_values  # noqa: E402


def puzzles():
    """[(the text of its file, the puzzle)], in order."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((HERE / "list").glob("*.py"))]
    return [(text, judge.load(text)) for text in texts]


def vendored(name):
    """The bytes of a file of vendored/. RuntimeError where they are not those that its README.md names."""
    content = (HERE / "vendored" / name).read_bytes()
    known = (HERE / "vendored/README.md").read_text(encoding="utf-8")
    if f"{hashlib.sha256(content).hexdigest()}  {name}" not in known:
        raise RuntimeError(f"site/puzzles/vendored/{name} has another checksum than README.md beside it names")
    return content


def page():
    """The page's HTML."""
    told = []
    for text, puzzle in puzzles():
        given, wanted = puzzle["case"](puzzle["RANKS"][-1])
        told.append({"title": puzzle["TITLE"], "task": puzzle["TASK"], "name": puzzle["NAME"], "code": puzzle["CODE"],
                     "solution": puzzle["SOLUTION"], "uses": puzzle["USES"], "learned": puzzle["LEARNED"],
                     "ranks": puzzle["RANKS"],
                     "given": re.search(rf"def {puzzle['NAME']}\((\w+)", puzzle["SOLUTION"])[1],
                     "returns": bool(re.search(r"^    return .", puzzle["SOLUTION"], re.M)),
                     "file": puzzle["FILE"], "home": puzzle["AT_HOME"], "text": text,
                     "start": [plain_values(each[0]) for each in given], "wanted": plain_values(wanted)})
    python = {name: (HERE / name).read_text(encoding="utf-8") for name in ("__init__.py", "engine.py", "judge.py")}
    parts = {"puzzles": json.dumps(told), "files": json.dumps(python),
             **{name: base64.b64encode(gzip.compress(vendored(f"micropython.{kind}"), mtime=0)).decode()
                for name, kind in (("wasm", "wasm"), ("micropython", "mjs"))}}
    parts = {name: part.replace("</", "<\\/") for name, part in parts.items()}  # no text ends the script
    template = (HERE / "page.html").read_text(encoding="utf-8")
    return re.sub(f"@({'|'.join(parts)})@", lambda found: parts[found[1]], template)


if __name__ == "__main__":
    file = Path(sys.argv[1] if len(sys.argv) > 1 else "build/puzzles.html")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page(), encoding="utf-8")
    print(f"{file}: {file.stat().st_size / 1000:.0f} kB")
