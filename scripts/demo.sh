#!/usr/bin/env bash
# The main job on the embedded data set, as a newcomer would type it: train, compare, recommend, explain, report.
set -euo pipefail
out=demo
rm -rf "$out"
say() { printf '\n$ hmlet %s\n' "$*"; hmlet "$@"; }

say data stats debian
say train debian --model hmlet-end --out "$out/hmlet-end"
say train debian --model lightgcn --out "$out/lightgcn"
say compare "$out/hmlet-end" "$out/lightgcn"
say recommend "$out/hmlet-end" --user gimp --user kdenlive -k 5
say explain "$out/hmlet-end" --user gimp --item libgtk-3-0
hmlet analyze "$out/hmlet-end" >/dev/null
say report "$out/hmlet-end" "$out/lightgcn" --out "$out/report.html"
printf '\nOpen %s in a browser. To explore: .venv/bin/hmlet serve %s, then http://127.0.0.1:8000\n' "$out/report.html" "$out/hmlet-end"
