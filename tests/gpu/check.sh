#!/bin/bash
# One GPU, a few minutes: does training on it do what it does on a CPU, and how fast? No network, no data, no weights needed.
#
#     tests/gpu/check.sh [FOLDER]                    (a scratch folder with 20 GB; default: a temporary one)
#     EFT_CHECK_TINY=1 tests/gpu/check.sh            the same steps with tiny sizes on the CPU, to try the script
#
# bf16 matrix products, attention kernels against each other, packed against unpacked rows, SFT and KTO of a model with
# random weights at 8k to 32k tokens; tokens per second, MFU, memory as measured and as estimated. Exit code 0: all agree.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$(cd "$here/../.." && pwd)
python=${PYTHON:-$repository/.venv/bin/python}
[ -x "$python" ] || python=python3
folder=${1:-$(mktemp -d)}
[ $# -gt 0 ] || trap 'rm -rf "$folder"' EXIT
command -v nvidia-smi > /dev/null && nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader || true
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=true PYTORCH_CUDA_ALLOC_CONF=${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}
PYTHONPATH=$repository${PYTHONPATH:+:$PYTHONPATH} "$python" "$here/check.py" "$folder"
