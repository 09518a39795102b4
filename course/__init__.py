"""What teaches: imported by notebooks, tests and scripts, never by the training program at the root."""

from pathlib import Path

# A class shares one installed course. In a notebook of somebody's own copy, this package is that copy's.
__path__ = [str(Path(place).resolve()) for place in ("course", "../course", "../../course")
            if Path(place, "lesson.py").exists()][:1] or __path__
