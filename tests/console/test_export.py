"""Files that the console writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SAVE = """
import resource, sys
from pathlib import Path
from schedtop.console.terminal.export import save_text

resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    save_text(Path(sys.argv[1]), "long.txt", "x" * 1000)
except OSError as error:
    print(error.strerror)
"""


def test_a_file_that_does_not_fit_leaves_no_part_of_it(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SAVE, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "File too large\n"
    assert list(tmp_path.iterdir()) == []
