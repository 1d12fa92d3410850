"""Real clients, unchanged, against a real server: `make test-clients`, or check_clients.py [NAME…].

Each client has an environment of its own under `$SCHEDTOP_CLIENTS` (by default a folder beside other temporary files),
made at the first run. `$VLLM` is a `vllm` program for `vllm bench serve`; without one that client is left out.
`$TOKENIZER` is a model folder whose tokenizer the clients count with; by default that of `schedtop pull smollm2`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
CLIENTS = Path(os.environ.get("SCHEDTOP_CLIENTS", Path(tempfile.gettempdir(), "schedtop-clients")))
MODEL = "llama-3.1-8b"
NUM_REQUESTS = 8
QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "AIPERF_DISABLE_TELEMETRY": "1"}
PACKAGES = {"openai": "openai>=2", "guidellm": "guidellm>=0.8,<0.9", "aiperf": "aiperf"}


class Server:
    """`schedtop serve --http` on a simulated device, in real time."""

    def __init__(self, url: str) -> None:
        self.url = url

    def count(self, name: str) -> float:
        """A sample of the metrics page that has no labels of its own."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as page:
            found = re.search(rf"^{re.escape(name)}\{{[^}}]*\}} (\S+)$", page.read().decode(), re.MULTILINE)
        assert found, name
        return float(found[1])


@contextmanager
def serving() -> Iterator[Server]:
    program = Path(sys.executable).with_name("schedtop")
    command = [program, "serve", "--http", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            url = next(found[1] for line in process.stderr if (found := re.search(r"HTTP at (\S+),", line)))
            yield Server(url)
        finally:
            process.terminate()
            process.wait(30)


def environment(name: str) -> Path:
    """The folder of a client's programs, its environment made now if it is not there."""
    folder = CLIENTS / name
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin/pip", "install", "--quiet", PACKAGES[name]], check=True)
        (folder / "ready").touch()
    return folder / "bin"


def tokenizer() -> str:
    if "TOKENIZER" in os.environ:
        return os.environ["TOKENIZER"]
    import platformdirs

    folders = sorted(Path(platformdirs.user_cache_dir("schedtop"), "models/smollm2").glob("*/tokenizer.json"))
    assert folders, "give TOKENIZER=FOLDER, or run `schedtop pull smollm2` and serve it once"
    return str(folders[0].parent)


def as_hub_cache(folder: Path) -> Path:
    """A hub cache that holds the tokenizer as `local/tokenizer`, for a client that takes no folder while offline."""
    entry, commit = folder / "hub/models--local--tokenizer", "0" * 40
    (entry / "refs").mkdir(parents=True)
    (entry / "refs/main").write_text(commit)
    (entry / "snapshots").mkdir()
    (entry / "snapshots" / commit).symlink_to(tokenizer())
    return folder


def run(command: list[str | Path], **environment: str) -> str:
    env = {**os.environ, **QUIET, "HF_HUB_OFFLINE": "1", **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}\n{command[0]} failed: {done.returncode}")
    return done.stdout


def check_openai(server: Server) -> None:
    run([environment("openai") / "python", HERE / "openai_client.py", server.url, MODEL])


def check_vllm(server: Server) -> None:
    for backend, route in (("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")):
        before = server.count("vllm:generation_tokens_total")
        with tempfile.TemporaryDirectory() as folder:
            command: list[str | Path] = [os.environ["VLLM"], "bench", "serve", "--backend", backend]
            command += ["--endpoint", route, "--base-url", server.url, "--model", MODEL, "--tokenizer", tokenizer()]
            command += ["--dataset-name", "random", "--random-input-len", "40", "--random-output-len", "20"]
            command += ["--num-prompts", str(NUM_REQUESTS), "--ignore-eos", "--disable-tqdm"]
            run([*command, "--save-result", "--result-dir", folder])
            (path,) = Path(folder).glob("*.json")
            result = json.loads(path.read_text())
        made = server.count("vllm:generation_tokens_total") - before
        assert result["completed"] == NUM_REQUESTS and result.get("failed", 0) == 0
        assert result["total_output_tokens"] == made == NUM_REQUESTS * 20


def check_guidellm(server: Server) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "report.json")
        command: list[str | Path] = [environment("guidellm") / "guidellm", "run", "--disable-progress"]
        command += ["--backend", f"kind=openai_http,target={server.url}"]
        command += [
            "--profile",
            "kind=concurrent,streams=4",
            "--constraint",
            f"kind=max_requests,count={NUM_REQUESTS}",
        ]
        command += ["--tokenizer", f"kind=huggingface_auto,model={tokenizer()}"]
        command += ["--data", "kind=synthetic_text,prompt_tokens=40,output_tokens=20"]
        run([*command, "--output", f"kind=json,path={out}"])
        (benchmark,) = json.loads(out.read_text())["benchmarks"]
    requests = benchmark["requests"]
    assert len(requests["successful"]) == NUM_REQUESTS and not requests["errored"]
    assert server.count("vllm:generation_tokens_total") >= NUM_REQUESTS * 20


def check_aiperf(server: Server) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command: list[str | Path] = [environment("aiperf") / "aiperf", "profile", "--url", server.url]
        command += ["--model", MODEL, "--endpoint-type", "chat", "--streaming", "--tokenizer", "local/tokenizer"]
        command += ["--concurrency", "4", "--request-count", str(NUM_REQUESTS), "--ui", "none"]
        command += ["--synthetic-input-tokens-mean", "40", "--output-tokens-mean", "20"]
        command += ["--extra-inputs", "ignore_eos:true", "--artifact-dir", folder]
        run(command, HF_HOME=str(as_hub_cache(Path(folder, "hf"))))
        (path,) = Path(folder).rglob("profile_export_aiperf.json")
        result = json.loads(path.read_text())
    assert result["request_count"]["avg"] == NUM_REQUESTS, result["request_count"]
    assert not result.get("error_summary")


CHECKS: dict[str, Callable[[Server], None]] = {
    "openai": check_openai,
    "vllm": check_vllm,
    "guidellm": check_guidellm,
    "aiperf": check_aiperf,
}


def main(names: list[str]) -> None:
    for name in names or CHECKS:
        if name == "vllm" and "VLLM" not in os.environ:
            print("vllm: left out (give VLLM=PROGRAM)")
            continue
        with serving() as server:
            CHECKS[name](server)
        print(f"{name}: passes", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
