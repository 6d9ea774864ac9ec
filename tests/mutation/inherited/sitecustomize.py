"""Takes a guard away in the programs that its test starts; :mod:`tests.mutation.guards` puts this before their path."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path

_without = runpy.run_path(str(Path(__file__).parents[1] / "without.py"))["Without"]
sys.meta_path.insert(0, _without(*json.loads(os.environ["WITHOUT_GUARD"])))
