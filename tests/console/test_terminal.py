"""The whole program in a real pseudo-terminal: it starts, is used, and leaves the terminal as it was."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from schedtop.console.terminal.driver import has_hung_up
from schedtop.engine.recording.reader import Recording
from terminal import ANSWER, ASKED, Tty

RESTORED = (b"\x1b[?1049l", b"\x1b[?25h", b"\x1b[?1000l", b"\x1b[?1003l", b"\x1b[?2004l")
"""Leave the alternate screen, show the cursor, give back the mouse, stop bracketing pastes."""

PATIENCE_S = 300.0
"""A bound for what hangs; nothing here may depend on how fast anything is."""


class Child:
    """A program on a pseudo-terminal of its own. `seen` is all it has written since the last key."""

    started: ClassVar[list[Child]] = []

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 45, 160, 0, 0))
            unwanted = ("NO_COLOR", "COLUMNS", "LINES")
            inherited = {name: value for name, value in os.environ.items() if name not in unwanted}
            terminal = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONSAFEPATH": "1"}
            if "XDG_CONFIG_HOME" in environment:  # no test leaves flights in the user's own folder
                terminal["XDG_STATE_HOME"] = environment["XDG_CONFIG_HOME"]
            os.execve(sys.executable, [sys.executable, *arguments], inherited | terminal | environment)
        self.seen = b""
        self.screen = Tty(160, 45)
        self.answering = True
        self.ended = False
        self.code: int | None = None
        self.started.append(self)

    def read(self, timeout_s: float = 0.2) -> None:
        if not select.select([self.fd], [], [], timeout_s)[0]:
            return
        try:
            data = os.read(self.fd, 1 << 16)
        except OSError:
            data = b""
        self.ended = not data
        self.seen += data
        self.screen.feed(data)
        if self.answering and ASKED in data:
            os.write(self.fd, ANSWER * data.count(ASKED))

    def sees(self, mark: bytes) -> bool:
        """Words are looked for on the screen, sequences in what was written."""
        return mark in self.seen if b"\x1b" in mark else mark.decode() in self.screen.text

    def wait_for(self, mark: bytes) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not self.sees(mark):
            assert time.monotonic() < until_s and not self.ended, (mark, self.seen[-2000:])
            self.read()

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < until_s and not self.ended, what
            self.read()

    def press(self, keys: bytes, mark: bytes) -> None:
        """Press keys until what they bring up is painted."""
        self.seen = b""
        os.write(self.fd, keys)
        self.wait_for(mark)

    def ends_with(self, code: int) -> None:
        """It ends by itself, with this exit code."""
        until_s = time.monotonic() + PATIENCE_S
        while not self.ended:
            assert time.monotonic() < until_s, (b"it does not end", self.seen[-2000:])
            self.read()
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        assert self.code == code, (self.code, self.seen[-4000:])

    def engine(self) -> int:
        """The process id of its engine."""
        for path in Path("/proc").glob("[0-9]*"):
            try:
                words, of = (
                    (path / "cmdline").read_bytes(),
                    (path / "stat").read_text().rsplit(") ", 1)[1].split()[1],
                )
            except OSError:
                continue  # it ended meanwhile
            if of == str(self.pid) and b"schedtop.engine.serving.service" in words:
                return int(path.name)
        raise AssertionError("the console has no engine")

    def clear(self) -> None:
        """Leave nothing behind, whatever became of the test."""
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    yield
    while Child.started:
        Child.started.pop().clear()


CONSOLE = (
    "-c",
    "from schedtop.console.cli.main import main; main()",
    "--device=sim:llama-3.1-8b@h100",
    "--workload=mixed",
    "--rate=8",
)


@pytest.fixture
def home(tmp_path: Path) -> str:
    return str(tmp_path)


def test_start_change_a_knob_see_the_mark_and_quit(home: str) -> None:
    child = Child(*CONSOLE, XDG_CONFIG_HOME=home)
    child.wait_for(b"LIVE")
    child.press(b"6", b" Knobs ")
    child.press(b"-", b"1 staged")
    child.press(b"\r", b"max_num_batched_tokens 2048")
    child.wait_for(b"K max_num_batched_tokens")
    child.press(b"7z", b"by=console ")
    child.wait_for(b"@pts/")
    child.press(b"z", b"Requests")
    child.wait_for(b"decode")  # something is in flight, and more follows it all the time
    child.press(b"q", b"in flight")
    os.write(child.fd, b"y")
    child.ends_with(0)
    for sequence in RESTORED:
        assert sequence in child.seen
    assert b"Traceback" not in child.seen


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])  # SIGTERM ends most of what follows
def test_a_signal_leaves_the_terminal_as_it_was(home: str, number: signal.Signals) -> None:
    child = Child(*CONSOLE, XDG_CONFIG_HOME=home)
    child.wait_for(b"LIVE")
    os.kill(child.pid, number)
    child.ends_with(128 + number)
    for sequence in RESTORED:
        assert sequence in child.seen


CRASH = """
import sys
sys.path[:0] = {folder!r},
from links import EngineLink
from synthetic import SyntheticEngine
from schedtop.console.app import ConsoleApp
from schedtop.console.widgets.kv import KvPanel
secret = "do not print this prompt"
def body(self, width, height):
    hidden = secret
    raise RuntimeError("a bug")
class Broken(ConsoleApp):
    def on_ready(self):
        KvPanel.body = body
        self.set_timer(0.1, self.paint)
app = Broken(EngineLink(SyntheticEngine(rate=9.0), 30))
app.run()
sys.exit(app.return_code)
"""


def test_a_crash_restores_the_terminal_and_tells_no_values(tmp_path: Path) -> None:
    script = tmp_path / "crash.py"
    script.write_text(CRASH.format(folder=str(Path(__file__).parent)))
    child = Child(str(script), XDG_CONFIG_HOME=str(tmp_path))
    child.wait_for(b"RuntimeError: a bug")
    child.ends_with(1)
    for sequence in RESTORED:
        assert sequence in child.seen
    assert child.seen.rfind(b"\x1b[?1049l") < child.seen.rfind(b"RuntimeError: a bug")
    assert b"do not print this prompt" not in child.seen


def test_no_colour_sends_no_colour(home: str) -> None:
    child = Child(*CONSOLE, "--ascii", XDG_CONFIG_HOME=home, NO_COLOR="1")
    child.wait_for(b"LIVE")
    child.press(b"1z", b" Batch ")
    os.kill(child.pid, signal.SIGTERM)
    child.ends_with(128 + signal.SIGTERM)
    assert all(sequence in child.seen for sequence in RESTORED)
    assert not re.search(rb"\x1b\[[\d;]*[34]8;[25];|\x1b\[[\d;]*(3|4|9|10)[0-7]m", child.seen)
    text = child.seen.replace(b"\x1b", b"")
    assert all(byte < 128 for byte in text)


@pytest.mark.parametrize(
    ("terminal", "beyond"),
    [("xterm-16color", rb"\x1b\[[\d;]*[34]8;[25];"), ("tmux-256color", rb"\x1b\[[\d;]*[34]8;2;")],
)
def test_no_colour_is_sent_that_the_terminal_has_not(home: str, terminal: str, beyond: bytes) -> None:
    child = Child(*CONSOLE, XDG_CONFIG_HOME=home, TERM=terminal, COLORTERM="")
    child.wait_for(b"LIVE")
    child.press(b"K", b"Presets")
    child.press(b"x", b"Findings")
    os.kill(child.pid, signal.SIGTERM)
    child.ends_with(128 + signal.SIGTERM)
    drawn = child.seen
    assert re.search(rb"\x1b\[[\d;]*(3|4|9|10)[0-7](;\d+)*m|\x1b\[[\d;]*[34]8;5;", drawn), "there are colours"
    assert not re.search(beyond, drawn)


def waiting_bytes(fd: int) -> int:
    """What a terminal's program has written and nobody has read."""
    return int(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))[0])


def test_a_terminal_that_goes_away_takes_the_console_with_it(home: str) -> None:
    """Even if nobody reads any more, so that it waits to be rid of what it drew, when the terminal closes."""
    child = Child(*CONSOLE, XDG_CONFIG_HOME=home)
    child.wait_for(b"LIVE")
    engine, until_s = child.engine(), time.monotonic() + PATIENCE_S
    before = -1
    while (unread := waiting_bytes(child.fd)) != before:  # one frame is on its way, and no other follows it
        assert time.monotonic() < until_s, "frames pile up"
        before = unread
        time.sleep(1.0)
    os.close(child.fd)
    child.fd = os.open(os.devnull, os.O_RDONLY)
    while not (ended := os.waitpid(child.pid, os.WNOHANG))[0]:
        assert time.monotonic() < until_s, "it goes on without a terminal"
        time.sleep(0.05)
    child.code = os.waitstatus_to_exitcode(ended[1])
    assert child.code == 128 + signal.SIGHUP
    while Path(f"/proc/{engine}").exists():
        assert time.monotonic() < until_s, "its engine goes on"
        time.sleep(0.05)


def test_a_closed_terminal_is_seen_by_who_gets_no_signal() -> None:
    ours, theirs = pty.openpty()
    try:
        assert not has_hung_up(theirs)
        os.close(ours)
        assert has_hung_up(theirs)
    finally:
        os.close(theirs)


def attributes(child: Child) -> list[object]:
    """How the terminal treats what is typed."""
    return [field for field in termios.tcgetattr(child.fd) if isinstance(field, int)]


def test_continued_without_having_been_suspended_until_ctrl_c(home: str) -> None:
    """By `kill -STOP` and `fg`, say: it goes on, and the terminal is left as it was before the start."""
    waiting = Child("-c", "input('ready')")
    waiting.wait_for(b"ready")
    usual = attributes(waiting)
    child = Child(*CONSOLE, XDG_CONFIG_HOME=home)
    child.wait_for(b"LIVE")
    for _ in range(3):
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        child.seen = b""
        os.kill(child.pid, signal.SIGCONT)
        child.wait_for(b"\x1b[?1049h")
        child.wait_for(b"[1]")
    assert len(list(Path(f"/proc/{child.pid}/task").iterdir())) <= 6
    os.write(child.fd, b"\x03")
    child.ends_with(0)
    assert attributes(child) == usual
    assert all(sequence in child.seen for sequence in RESTORED)


def test_suspended_and_brought_back_with_the_mouse_as_its_key_left_it(home: str) -> None:
    child = Child(*CONSOLE, "--no-mouse", XDG_CONFIG_HOME=home)
    child.wait_for(b"LIVE")
    assert b"\x1b[?1000h" not in child.seen
    child.press(b"M", b"\x1b[?1000h")
    child.press(b"M", b"\x1b[?1000l")
    child.press(b"\x1a", b"\x1b[?1049l")
    _, status = os.waitpid(child.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    child.seen = b""
    os.kill(child.pid, signal.SIGCONT)
    child.wait_for(b"\x1b[?1049h")
    child.wait_for(b"[1]")
    assert b"\x1b[?1000h" not in child.seen
    os.kill(child.pid, signal.SIGTERM)
    child.ends_with(128 + signal.SIGTERM)


def test_a_pipe_gets_no_escape() -> None:
    done = subprocess.run(
        [sys.executable, *CONSOLE], capture_output=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0 and done.stdout
    assert b"\x1b" not in done.stdout + done.stderr


def test_two_meanings_for_one_key_are_refused_before_anything_is_drawn(home: str) -> None:
    folder = Path(home) / "schedtop"
    folder.mkdir()
    (folder / "keys.toml").write_text('zoom = "q"\n')
    child = Child(*CONSOLE, XDG_CONFIG_HOME=home)
    child.ends_with(2)
    assert (
        b"q is bound to both" in child.seen and b"Traceback" not in child.seen and b"\x1b[?1049h" not in child.seen
    )


def test_a_slow_line_is_never_sent_more_than_it_can_show(home: str) -> None:
    """Bytes stand for time: at 100 kB/s a key has half a second, which is 50 kB."""
    child = Child(*CONSOLE, XDG_CONFIG_HOME=home)
    child.wait_for(b"LIVE")
    child.wait_for(b"decode")
    child.answering = False
    child.read()
    while waiting_bytes(child.fd):
        child.read()
    time.sleep(1.0)  # frames that come meanwhile are not sent: the last one has not been answered
    assert waiting_bytes(child.fd) < 20_000
    child.answering = True
    os.write(child.fd, ANSWER)
    child.press(b"?", b"closes this page")
    assert len(child.seen) < 50_000
    os.kill(child.pid, signal.SIGTERM)
    child.ends_with(128 + signal.SIGTERM)


def test_the_last_minutes_and_what_follows_are_recorded_by_a_key(
    home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    child = Child(*CONSOLE, XDG_CONFIG_HOME=home)
    child.wait_for(b"Nothing is held back")  # before the engine's first word there is nothing to record
    child.press(b"W", b"W ends it")
    child.wait_for(b"REC")
    child.press(b"W", b" recorded /")
    child.press(b"W", b"W ends it")  # the second goes on until the console is left
    child.wait_until(lambda: len(list(Path(home).glob("schedtop-*.schedtop"))) == 2, "no second recording")
    os.kill(child.pid, signal.SIGTERM)
    child.ends_with(128 + signal.SIGTERM)
    found = sorted(Path(home).glob("schedtop-*.schedtop"))
    assert len(found) == 2
    for path in found:
        with Recording(path) as recording:
            assert recording.num_records and not recording.truncated
            assert recording.record(0).step <= 1


def test_a_killed_engine_is_shown_with_its_cause_offered_at_the_next_start_and_opened(home: str) -> None:
    child = Child(*CONSOLE, XDG_CONFIG_HOME=home)
    child.wait_for(b"LIVE")
    flights = Path(home) / "schedtop" / "flights"
    child.wait_until(lambda: any(path.stat().st_size for path in flights.glob("*/*.frames")), "nothing on disk")
    os.kill(child.engine(), signal.SIGKILL)
    child.wait_for(b"STOPPED")
    child.wait_for(b"killed by signal 9")
    os.write(child.fd, b"q")
    child.ends_with(1)
    child = Child(*CONSOLE, XDG_CONFIG_HOME=home)
    child.wait_for(b"did not end in order: schedtop replay")
    child.wait_for(b"LIVE")
    os.kill(child.pid, signal.SIGTERM)
    child.ends_with(128 + signal.SIGTERM)
    [flight] = flights.iterdir()
    child = Child(*CONSOLE[:2], "replay", str(flight), XDG_CONFIG_HOME=home)
    child.wait_for(b"REPLAY")
    os.kill(child.pid, signal.SIGTERM)
    child.ends_with(128 + signal.SIGTERM)


def test_an_engine_that_is_ended_and_started_again_comes_back_behind_its_first_run(tmp_path: Path) -> None:
    home, address = str(tmp_path), f"unix:{tmp_path}/engine.sock"
    environment = {**os.environ, "XDG_CONFIG_HOME": home, "XDG_STATE_HOME": home}

    def serve() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", *CONSOLE[:2], "serve", f"--listen={address}", *CONSOLE[2:]]
        return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)

    engine = serve()
    try:
        while not (tmp_path / "engine.sock").exists():
            assert engine.poll() is None
            time.sleep(0.05)
        child = Child(*CONSOLE[:2], "attach", address, XDG_CONFIG_HOME=home)
        child.wait_for(b"LIVE")
        engine.terminate()
        child.wait_for(b"The engine stopped")
        child.wait_for(b"the engine got SIGTERM")
        engine.wait()
        engine = serve()
        child.wait_for(b"A new engine (started at")
        child.wait_for(b"the previous run stays on the timeline")
        child.wait_for(b"LIVE")
        os.write(child.fd, b"q")
        child.wait_for(b"The engine keeps running")
        os.write(child.fd, b"y")
        child.ends_with(0)
    finally:
        engine.kill()
        engine.wait()
