"""Strategies import each other as they do beside train_gpt.py: by their names alone."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "start/ours"))
