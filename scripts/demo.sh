#!/usr/bin/env bash
# The main job on the embedded data set, as a newcomer would type it: train, compare, recommend, explain, report.
# The preset is the one that your own data gets without options. Two threads, whatever the number of cores: sums in
# another order would end in other digits. lab/results/demo/output.txt is what it printed.
set -euo pipefail
out=demo
rm -rf "$out"
say() { printf '\n$ hmlet %s\n' "$*"; hmlet "$@"; }

say data stats debian
for model in popularity lightgcn hmlet-end; do
    say train debian --model "$model" --preset fitted --threads 2 --out "$out/$model"
done
say compare "$out/hmlet-end" "$out/lightgcn" "$out/popularity"
say recommend "$out/hmlet-end" --user gimp --user kdenlive -k 5
say explain "$out/hmlet-end" --user gimp --item libgtk-3-0
hmlet analyze "$out/hmlet-end" >/dev/null
say report "$out/hmlet-end" "$out/lightgcn" "$out/popularity" --out "$out/report.html"
printf '\nOpen %s in a browser. To explore: .venv/bin/hmlet serve %s, then http://127.0.0.1:8000\n' "$out/report.html" "$out/hmlet-end"
