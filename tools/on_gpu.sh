#!/usr/bin/env bash
# All that envbuilder must show on a machine with a GPU, in one call of less than ten minutes.
#
#   tools/on_gpu.sh pack [--python-version 3.12]   here, with a network: what the machine lacks, into .gpu/
#   tools/on_gpu.sh run OUT [--device cuda]        there, without one: at most 8 files in OUT
#
# `run --help` lists the options; `run OUT --device cpu --python EXE --quick` tries it without a GPU.
# PYTHON names the interpreter: for `pack` one with envbuilder (.venv's), for `run` one with torch.
set -euo pipefail
tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
default=python3
[[ ${1:-} != pack ]] || default=$tools/../.venv/bin/python
exec "${PYTHON:-$default}" "$tools/on_gpu.py" "$@"
