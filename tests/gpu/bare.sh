#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# `make gpu` on a machine that has python3 with torch and pytest, and neither an index nor our virtual environment:
#
#     tests/gpu/bare.sh WHEELS [ARGUMENTS OF make gpu]
#
# WHEELS is what `make gpu-wheels` collected. Nothing is installed into python3's own packages. Where it holds no wheel of
# this project the extension is built here, which takes a C compiler, setuptools and OpenSSL's headers.
set -euo pipefail
(($#)) || { sed -n '3,9s/^# \?//p' "$0"; exit 2; }
wheels=$(realpath "$1")
shift
cd "$(dirname "$(realpath "$0")")/../.."
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
pip=(python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --no-warn-conflicts --upgrade --target "$site")
"${pip[@]}" "$wheels"/*.whl
export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1
compgen -G "$wheels/ultimad-*.whl" >/dev/null || "${pip[@]}" --no-build-isolation .
python3 -c 'import sys, torch; print("Python", sys.version.split()[0], "torch", torch.__version__)'
python3 -m tests.gpu.main "$@"
