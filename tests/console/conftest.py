from __future__ import annotations

import sys
from pathlib import Path

# importlib import mode puts no test folder on the path; the synthetic engine is shared by these tests.
sys.path.insert(0, str(Path(__file__).parent))
