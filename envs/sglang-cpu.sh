#!/usr/bin/env bash
# Make the SGLang-on-CPU environment in the folder $1 (about 3 GB), unless it is complete already.
#   bash envs/sglang-cpu.sh .venv-sglang
set -euo pipefail
venv=${1:?usage: envs/sglang-cpu.sh FOLDER}
list=$(dirname "$0")/sglang-cpu.txt
python=${PYTHON:-python3}

if cmp -s "$list" "$venv/installed.txt"; then
    exit 0
fi
"$python" -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$list"
cp "$list" "$venv/installed.txt"  # last: an interrupted installation is taken up again
