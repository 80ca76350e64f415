#!/usr/bin/env bash
# Runs the tests marked `pure` (no torch, no processes) on Python 3.12 and 3.13 where they are installed.
set -euo pipefail
cd "$(dirname "$0")/.."
for version in 3.12 3.13; do
  python=
  for candidate in "$(command -v "python$version" || true)" "$HOME"/.pyenv/versions/"$version".*/bin/python; do
    if [ -x "$candidate" ] && "$candidate" -c "import sys, venv, ensurepip; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" 2>/dev/null; then
      python=$candidate
      break
    fi
  done
  if [ -z "$python" ]; then
    echo "python $version is not installed here: skipped"
    continue
  fi
  venv=.venv/python$version
  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install -q -c constraints.txt -e . pytest pytest-timeout hypothesis pyarrow
  echo "python $version, without torch:"
  "$venv/bin/python" -m pytest -q -m "pure and not slow" -p no:cacheprovider
done
