#!/usr/bin/env bash
# A first measurement: tests/programs/fill_twice plain and in half of the memory it needs, by pattern. Each line gives
# the seconds of the fill and of each pass of reading, and how long a fault took that the pool or a device answered.
#
#   bench/run.sh [MIB] [PATTERN...]
set -euo pipefail
cd "$(dirname "$0")/.."
uswap="${CARGO_TARGET_DIR:-target}/release/uswap"
memory="${1:-256}"
[ $# -gt 0 ] && shift
patterns=("${@:-seq}")
[ $# -gt 0 ] || patterns=(seq random zero incompressible half-random)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cc -O1 -pthread tests/programs/fill_twice.c -o "$folder/fill_twice"

latency() {
    python3 - "$1" <<'PYTHON'
import json, sys
tiers = json.load(open(sys.argv[1]))["fault_latency"]
told = [f"{name} {t['p50_ns'] / 1000:.0f}/{t['p99_ns'] / 1000:.0f} us" for name, t in tiers.items() if t["count"]]
print("    faults, p50/p99: " + ", ".join(told))
PYTHON
}

echo "$memory MiB, budget $((memory / 2)) MiB"
for pattern in "${patterns[@]}"; do
    echo "$pattern"
    echo "  plain: $("$folder/fill_twice" "$memory" "$pattern" | tr '\n' ' ')"
    told=$(timeout 300 "$uswap" run -q --ram "$((memory / 2))M" --stats "$folder/stats.json" -- \
        "$folder/fill_twice" "$memory" "$pattern" | tr '\n' ' ') || told="FAILED with status $?"
    echo "  uswap: $told"
    [ ! -s "$folder/stats.json" ] || latency "$folder/stats.json"
done
