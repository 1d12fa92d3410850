"""The recipes of CONTRIBUTING.md, followed word for word on a copy of the rooms."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the rooms, importable as `schedtop` from its parent."""
    for room in ("console", "engine", "kernels", "themes"):
        shutil.copytree(ROOT / room, tmp_path / "schedtop" / room, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "schedtop"


def edit(path: Path, change: Callable[[str], str]) -> None:
    before = path.read_text()
    after = change(before)
    assert after != before, f"the recipe no longer fits {path.name}"
    path.write_text(after)


def run(copy: Path, code: str) -> str:
    """What a program prints that runs on the copy."""
    path = os.pathsep.join([str(copy.parent), *(entry for entry in sys.path if entry.endswith("site-packages"))])
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        cwd=copy.parent,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_knob(copy: Path) -> None:
    row = """    Knob(
        "max_num_new_seqs",
        int,
        8,
        low=1,
        high=64,
        live=True,
        effect="Requests admitted in one step.",
        up="Shorter queue.",
        down="Shorter steps.",
    ),
)
"""
    edit(copy / "engine/contract/knobs.py", lambda text: text.replace("\n)\n", "\n" + row, 1))
    field = "\n    max_num_new_seqs: int = 8"
    edit(
        copy / "engine/contract/config.py",
        lambda text: text.replace("    num_blocks: int", "    num_blocks: int" + field, 1),
    )
    limit = "    seq_cap: int\n"
    edit(
        copy / "engine/scheduler/books/state.py",
        lambda text: text.replace(limit, limit + "    max_num_new_seqs: int\n", 1),
    )
    shown = run(
        copy,
        "from schedtop.engine.build import build_engine\n"
        "from schedtop.engine.contract.config import EngineConfig\n"
        "engine = build_engine(EngineConfig(scheduler={'num_blocks': 64, 'max_num_new_seqs': 3}))\n"
        "state = engine.scheduler.state\n"
        "print(state.limits.max_num_new_seqs)\n"
        "print(engine.set_knobs({'max_num_new_seqs': 5}).ok, state.limits.max_num_new_seqs)\n"
        "print(engine.set_knobs({'max_num_new_seqs': 65}).text)\n"
        "print(engine.snapshot().knobs['max_num_new_seqs'])\n",
    )
    assert shown == "3\nTrue 5\nmax_num_new_seqs=65: must be at most 64 (the knob's range)\n5\n"
    assert "--max-num-new-seqs" in run(copy, "from schedtop.console.cli.main import main; main(['run', '--help'])")


def test_a_command(copy: Path) -> None:
    (copy / "console/cli/hello.py").write_text(
        '"""`schedtop hello`."""\n\nimport click\n\n\n@click.command()\ndef command() -> None:\n'
        '    """Say hello."""\n    click.echo("hello")\n'
    )
    edit(
        copy / "console/cli/main.py",
        lambda text: text.replace('    "run":', '    "hello": "Say hello.",\n    "run":', 1),
    )
    assert run(copy, "from schedtop.console.cli.main import main; main(['hello'])") == "hello\n"
    assert "Say hello." in run(copy, "from schedtop.console.cli.main import main; main(['--help'])")


def test_a_limiter(copy: Path) -> None:
    """One that is added without its row fails the test that asks for it."""
    member = '    DP_THROTTLE = "dp_throttle"\n'
    edit(
        copy / "engine/contract/telemetry.py", lambda text: text.replace(member, member + '    MOOD = "mood"\n', 1)
    )
    missing = (
        "from schedtop.engine.contract.limiters import LIMITERS\n"
        "from schedtop.engine.contract.telemetry import Limiter\n"
        "print(*(limiter for limiter in Limiter if limiter not in LIMITERS))\n"
    )
    assert run(copy, missing) == "none mood\n"
    row = "LIMITERS: dict[Limiter, LimiterText] = {\n"
    edit(
        copy / "engine/contract/limiters.py",
        lambda text: text.replace(row, row + '    Limiter.MOOD: LimiterText("it does not feel like it"),\n', 1),
    )
    assert run(copy, missing) == "none\n"
    shown = run(copy, "from schedtop.console.widgets.queue import QueuePanel; print(QueuePanel.HELP)")
    assert "mood             it does not feel like it" in shown


PANEL = '''"""How far the engine is."""

from schedtop.console.drawing.line import Line
from schedtop.console.widgets.panel import Panel


class FarPanel(Panel):
    NUMBER = 0
    TITLE = "Far"
    HELP = "Steps since the start."

    def body(self, width, height):
        return [Line().add(f" {self.view.history.live.step} steps", self.view.palette["text"])]
'''


def test_a_panel(copy: Path) -> None:
    """On the Knobs screen: it is drawn, reached by its digit, and explained by help and palette."""
    (copy / "console/widgets/far.py").write_text(PANEL)
    changes = {
        "screens/knobs.py": {
            "from schedtop.console.widgets.knobs": "from schedtop.console.widgets.far import FarPanel\n",
            "        super().__init__(view, registry, (self.knobs, ": '        self.far = FarPanel(view, id="far")\n',
            "self.knobs, self.presets, self.changes": "self.far, ",
            "    def do_preset_stage": "    def do_panel_0(self):\n        self.screen.show_panel(self.screen.far)\n\n",
        },
        "console.tcss": {"    #presets { height: 4; }": "    #far { height: 2; }\n"},
        "actions.py": {
            '    Action("panel_9"': '    Action("panel_0", ("0",), "Go to Far", "Panel [0] of the Knobs screen"),\n'
        },
    }
    for file, rows in changes.items():
        for place, row in rows.items():
            edit(copy / "console" / file, lambda text, old=place, new=row: text.replace(old, new + old, 1))
    shown = run(
        copy,
        "import asyncio, sys\n"
        f"sys.path.insert(0, {str(ROOT / 'tests/console')!r})\n"
        "from seat import seated\n"
        "async def look():\n"
        "    async with seated((80, 50)) as seat:\n"
        "        text = await seat.press('K', '0')\n"
        "        print(seat.app.screen.panel.id, f'{seat.app.history.live.step} steps' in text)\n"
        "        print('Steps since the start.' in await seat.press('question_mark'))\n"
        "asyncio.run(look())\n",
    )
    assert shown == "far True\nTrue\n"


def test_a_device_and_a_workload(copy: Path) -> None:
    """A GPU, a shape, a generator and a trace format are one row each, and can then be named."""
    rows = {
        "sim/devices.py": ("_TABLE = (\n", '    Gpu("abacus", "Abacus", 100, 64, 1000, 64, PCIE_S),\n'),
        "sim/models.py": (
            '    ModelShape("llama-3.1-8b"',
            '    ModelShape("tiny", 2, 64, 4, 2, 16, 128, 512, 4096),\n',
        ),
        "workload/presets.py": (
            "PRESETS: tuple[WorkloadPreset, ...] = (\n",
            '    WorkloadPreset("trickle", "a chat now and then", 0.5, (RequestKind("chat", 1.0, _CHAT, _ANSWER),)),\n',
        ),
        "workload/csv_formats.py": (
            "CSV_FORMATS: tuple[CsvFormat, ...] = (\n",
            '    CsvFormat("Toll CSV", "came,asked,said", time="came", prompt="asked", output="said"),\n',
        ),
    }
    for file, (place, row) in rows.items():
        with_row = row + place if place.startswith(" ") else place + row
        edit(copy / "engine" / file, lambda text, old=place, new=with_row: text.replace(old, new, 1))
    trace = copy.parent / "toll.csv"
    trace.write_text("came,asked,said\n0,20,3\n1,30,4\n")
    shown = run(
        copy,
        "import json, sys\n"
        "from schedtop.engine.contract.config import EngineConfig, WorkloadSpec\n"
        "from schedtop.engine.offline.headless import run_headless\n"
        f"for source in ('trickle', {str(trace)!r}):\n"
        "    config = EngineConfig(device='sim:tiny@abacus', workload=WorkloadSpec(source=source, limit=2))\n"
        "    report = run_headless(config, None, lambda line: None).as_dict()\n"
        "    print(report['requests']['finished'], report['workload'].get('read_as'))\n",
    )
    assert shown == "2 None\n2 Toll CSV, times are seconds\n"


ECHO = """

class EchoWorker:
    simulated = True

    def execute(self, plan):
        import numpy as np
        from schedtop.engine.handoff.plan import StepResult

        sevens = np.full((plan.num_rows, 1), 7, dtype=np.int32)
        return StepResult(sevens, plan.samples.astype(np.int32), elapsed_s=0.001)


def _build_echo(config, settings):
    scheduler = scheduler_config(settings, 100, 1024)
    source = _open_source(config, scheduler, 1000)
    header = make_header(config, scheduler, source, "echo", "echo", 1000, simulated=True)
    return Engine(Scheduler(scheduler), EchoWorker(), source, SimulatedClock(), header)
"""


def test_a_device_of_another_kind(copy: Path) -> None:
    """A worker, and a branch where settings are checked and one where the engine is built."""
    build = copy / "engine/build.py"
    checked, built = "    if not simulated:\n", "    return _build_real("
    branch = '    if config.device == "echo":\n        return '
    edit(build, lambda text: text.replace(checked, branch + "settings\n" + checked, 1) + ECHO)
    edit(build, lambda text: text.replace(built, branch + "_build_echo(config, settings)\n" + built, 1))
    shown = run(
        copy,
        "from schedtop.engine.contract.config import EngineConfig, WorkloadSpec\n"
        "from schedtop.engine.offline.headless import run_headless\n"
        "config = EngineConfig(device='echo', workload=WorkloadSpec(source='mixed', limit=3, scale=0.1))\n"
        "print(run_headless(config, None, lambda line: None).as_dict()['requests']['finished'])\n",
    )
    assert shown == "3\n"
