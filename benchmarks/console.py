"""What the console costs while 2,000 records a second at 256 running come in, and how soon it draws.

    python benchmarks/console.py [--seconds 20] [--rate 2000] [--running 256] [--hour]

An engine process sends records over a private socket; the console runs in a pseudo-terminal of 160x45, where keys
are pressed and what it paints is read. The last line is JSON: seconds to the first frame of a simulated device and
to `--help`, records a second that the engine did send, share of a core at ten frames a second and while keys are
pressed as well, milliseconds from key to paint, keys that had no effect, growth of memory in MiB.
`--hour` adds the growth while an hour's records at that rate go into one history, as fast as it takes them.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import select
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAM = str(Path(sys.executable).with_name("schedtop"))
SIZE = (45, 160)
FIRST_FRAME = b"[1]"
KEYS = ((b"1", b"m Timeline "), (b"3", b"m Requests "))
"""Keys that are pressed in turn, and what only the painted answer to each holds: the focused panel's title."""
FILLED_S = 2.0
"""After a history has as many records as it keeps."""
SENT = ".sent"
"""What is added to the socket's name for the file that tells how many records went to it."""
BYTECODE = "PYTHONDONTWRITEBYTECODE"
"""What is installed has its bytecode; a start that compiles everything anew takes twice as long."""


class Terminal:
    """A child on a pseudo-terminal."""

    def __init__(self, command: list[str]) -> None:
        self.began_s = time.perf_counter()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
            os.environ.pop(BYTECODE, None)
            os.execvp(command[0], command)

    def read(self, timeout_s: float) -> bytes:
        ready, _, _ = select.select([self.fd], [], [], timeout_s)
        return os.read(self.fd, 1 << 18) if ready else b""

    def wait_for(self, mark: bytes, timeout_s: float) -> float | None:
        """Seconds until `mark` was painted; None if it was not in time."""
        began_s, seen = time.perf_counter(), b""
        while (left_s := began_s + timeout_s - time.perf_counter()) > 0:
            seen = seen[-len(mark) :] + self.read(left_s)
            if mark in seen:
                return time.perf_counter() - began_s
        return None

    def drain(self, seconds: float) -> None:
        until_s = time.perf_counter() + seconds
        while (left_s := until_s - time.perf_counter()) > 0:
            self.read(left_s)

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mib(self) -> float:
        return _memory_mib(self.pid)

    def end(self) -> int:
        os.kill(self.pid, signal.SIGTERM)
        try:
            while os.read(self.fd, 1 << 16):
                pass
        except OSError:
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _memory_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def serve(path: str, rate: float, running: int) -> None:
    """The engine's side: steps at `rate` a second with `running` requests, sent to whoever joins."""
    from schedtop.engine.channel.protocol import encode, frame

    engine = _steady_engine(1 / rate, running)
    while engine.scheduler.state.table.size < running:
        engine.step()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen()
    peer, _ = listener.accept()
    for message in (engine.header, engine.snapshot()):
        peer.sendall(b"".join(frame(encode(message))))
    next_s, sent = time.perf_counter(), 0
    reported = os.open(path + SENT, os.O_CREAT | os.O_WRONLY)
    try:
        while True:
            batch = b"".join(b"".join(frame(encode(engine.step()))) for _ in range(10))  # type: ignore[arg-type]
            peer.sendall(batch)
            sent += 10
            os.pwrite(reported, b"%12d" % sent, 0)
            next_s = max(next_s + 10 / rate, time.perf_counter() - 0.5)
            time.sleep(max(0.0, next_s - time.perf_counter()))
    except OSError:
        return


def _steady_engine(step_s: float, running: int) -> Any:
    """A simulated engine whose steps all take `step_s` and whose batch is always full."""
    import numpy as np
    from schedtop.engine.build import build_engine
    from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
    from schedtop.engine.handoff.request import Request

    class Steady:
        def step_s(self, features: object) -> float:
            return step_s

    class Full:
        """As many requests as keep `running` alive."""

        def __init__(self) -> None:
            self.description: dict[str, Any] = {"name": "full"}
            self.made = 0

        def take(self, clock_s: float, step: int) -> list[Request]:
            missing = running - engine.scheduler.num_unfinished
            made = [self._request(self.made + index, clock_s) for index in range(max(0, missing))]
            self.made += len(made)
            return made

        def _request(self, index: int, clock_s: float) -> Request:
            tokens = np.arange(index, index + 200 + index * 37 % 400, dtype=np.int32)
            return Request(f"load-{index}", tokens, 200 + index * 53 % 600, clock_s)

        def next_arrival_s(self) -> float | None:
            return None

        def set_rate(self, rate: float | None, clock_s: float) -> None:
            return None

    settings = {"max_num_seqs": running, "num_blocks": running * 100, "max_num_batched_tokens": 4096}
    engine = build_engine(
        EngineConfig(device="sim:llama-3.1-8b@h100", scheduler=settings, workload=WorkloadSpec(source="mixed"))
    )
    engine.worker.cost = Steady()  # type: ignore[attr-defined]
    engine.source = Full()
    return engine


def show(path: str) -> None:
    """The console's side."""
    from schedtop.console.app import run_console
    from schedtop.console.options import ConsoleOptions
    from schedtop.engine.channel.client import ChannelClient

    link = ChannelClient.connect(path)
    sys.exit(run_console(link, ConsoleOptions(ttft_slo_s=0.5, itl_slo_s=0.05)))


def measure(seconds: float, rate: float, running: int) -> dict[str, float]:
    """Cost and promptness under load."""
    from schedtop.console.past.past import MAX_RECORDS

    me = [sys.executable, str(Path(__file__).resolve())]
    load = ["--rate", str(rate), "--running", str(running)]
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/socket"
        engine = subprocess.Popen([*me, "--serve", path, *load])
        while not Path(path).exists():
            time.sleep(0.05)
        terminal = Terminal([*me, "--show", path])
        try:
            terminal.wait_for(b"LIVE", 20.0)
            terminal.drain(MAX_RECORDS / rate + FILLED_S)
            memory_mib = terminal.memory_mib()
            sent = int(Path(path + SENT).read_text())
            _, share = _with_share(terminal, lambda: terminal.drain(seconds / 2))
            sent = int(Path(path + SENT).read_text()) - sent
            (waits_s, dropped), pressed_share = _with_share(terminal, lambda: _press(terminal, seconds))
            grown_mib = terminal.memory_mib() - memory_mib
        finally:
            terminal.end()
            engine.terminate()
            engine.wait()
    waits_s.sort()
    return {
        "records_per_s": round(sent / (seconds / 2)),
        "core_share": round(share, 3),
        "core_share_with_keys": round(pressed_share, 3),
        "key_to_paint_ms_p50": round(statistics.median(waits_s) * 1000, 1),
        "key_to_paint_ms_p99": round(waits_s[int(len(waits_s) * 0.99)] * 1000, 1),
        "keys": len(waits_s) + dropped,
        "keys_dropped": dropped,
        "grown_mib": round(grown_mib, 1),
    }


def _with_share(terminal: Terminal, act: Callable[[], Any]) -> tuple[Any, float]:
    """What `act` gives, and the share of a core that the console took meanwhile."""
    cpu_s, began_s = terminal.cpu_s(), time.perf_counter()
    found = act()
    return found, (terminal.cpu_s() - cpu_s) / (time.perf_counter() - began_s)


def _press(terminal: Terminal, seconds: float) -> tuple[list[float], int]:
    waits_s: list[float] = []
    dropped, turn = 0, 0
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        key, mark = KEYS[turn % 2]
        turn += 1
        os.write(terminal.fd, key)
        wait_s = terminal.wait_for(mark, 2.0)
        if wait_s is None:
            dropped += 1
        else:
            waits_s.append(wait_s)
        terminal.drain(0.13 + 0.037 * (turn % 5))
    return waits_s, dropped


def hour(rate: float, running: int, kept: int = 20_000) -> dict[str, float]:
    """Memory of a history with its diagnosis over an hour, in MiB: what it grew by after the first two minutes.

    The same `kept` steps come again and again, each time as those of a later time.
    """
    from msgspec.structs import replace
    from schedtop.console.explain.log import Log
    from schedtop.console.past.history import History
    from schedtop.engine.channel.protocol import decode_outgoing, encode

    engine = _steady_engine(1 / rate, running)
    while engine.scheduler.state.table.size < running:
        engine.step()
    first = engine.snapshot()
    steps = [encode(engine.step()) for _ in range(kept)]
    history, log = History(), Log()
    history.watchers.append(log.take)
    history.apply(engine.header)
    sizes_mib = []
    for turn in range(round(3600 * rate / kept)):
        seq, later_s = turn * kept, turn * kept / rate
        history.apply(replace(first, seq=first.seq + seq, clock_s=first.clock_s + later_s))
        for body in steps:
            record = decode_outgoing(body)
            start_s, end_s = record.start_s + later_s, record.end_s + later_s
            history.apply(replace(record, seq=record.seq + seq, start_s=start_s, end_s=end_s))
            if record.seq % round(rate) == 0:
                log.look()
        sizes_mib.append(_memory_mib(os.getpid()))
    settled_mib = sizes_mib[min(len(sizes_mib) - 1, round(120 * rate / kept))]
    return {"hour_mib": round(sizes_mib[-1], 1), "hour_grown_mib": round(sizes_mib[-1] - settled_mib, 1)}


def first_frame_s(tries: int = 3) -> float:
    """Seconds from the command to the first frame of a simulated device, the best of some."""
    found = []
    for _ in range(tries):
        terminal = Terminal([PROGRAM, "--device", "sim:llama-3.1-8b@h100", "--workload", "mixed"])
        found.append(terminal.wait_for(FIRST_FRAME, 20.0) or 20.0)
        terminal.end()
    return round(min(found), 3)


def help_s(tries: int = 3) -> float:
    """Seconds that `--help` takes, the best of some."""
    found = []
    for _ in range(tries):
        began_s = time.perf_counter()
        environment = {name: value for name, value in os.environ.items() if name != BYTECODE}
        subprocess.run([PROGRAM, "--help"], check=True, stdout=subprocess.DEVNULL, env=environment)
        found.append(time.perf_counter() - began_s)
    return round(min(found), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long keys are pressed under load")
    parser.add_argument("--rate", type=float, default=2000.0, help="records a second")
    parser.add_argument("--running", type=int, default=256, help="requests in every record")
    parser.add_argument("--hour", action="store_true", help="also feed an hour's records: some minutes")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--show", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.rate, args.running)
    elif args.show:
        show(args.show)
    else:
        found = {"help_s": help_s(), "first_frame_s": first_frame_s()}
        found |= measure(args.seconds, args.rate, args.running)
        print(json.dumps(found | (hour(args.rate, args.running) if args.hour else {})))


if __name__ == "__main__":
    main()
