#!/bin/sh
# Checks and measures this machine's GPU: `bash run.sh --help` lists the flags. PYTHON names the Python that has torch.
here=$(cd "$(dirname "$0")" && pwd)
exec "${PYTHON:-python3}" -u "$here/run.py" "$@"
