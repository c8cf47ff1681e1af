#!/usr/bin/env python3
"""Figures of programs to which the agent is brought, as tables: docs/benchmarks/attach.md says what each means.

    attach.py stops [RUNS]       how long a program stands still when it is attached to, by its threads
    attach.py below [ROUNDS]     what a run costs programs that stay below the threshold, beside --no-attach

Needs a C compiler (static programs), busybox, and the release binaries beside this repository's target folder.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
USWAP = pathlib.Path(os.environ.get("USWAP_BINARIES", ROOT / "target/release")) / "uswap"


def fixed(name, folder):
    """A program of tests/programs, linked statically."""
    program = folder / name
    subprocess.run(["cc", "-O1", "-pthread", "-static", "-o", program, ROOT / f"tests/programs/{name}.c"], check=True)
    return program


def stats_of(command, *options):
    with tempfile.NamedTemporaryFile(suffix=".json") as stats:
        words = [USWAP, "run", "--quiet", "--ram", "256M", "--stats", stats.name, *options, "--", *command]
        subprocess.run(words, check=True, timeout=120, stdout=subprocess.DEVNULL)
        return json.load(stats)


def stops(runs):
    print("| threads | programs attached to | p50 µs | p99 µs | longest µs |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        program = fixed("attached", pathlib.Path(name))
        for threads in (0, 8, 32, 100):
            took = []
            for _ in range(runs):
                found = stats_of([program, "16", "900", str(threads)])["attach_stop"]
                took += [found["max_ns"] / 1000] if found["count"] == 1 else []
            took.sort()
            at = lambda part: took[min(len(took) - 1, int(part * len(took)))]
            print(f"| {threads} | {len(took)} | {at(.5):.0f} | {at(.99):.0f} | {took[-1]:.0f} |", flush=True)


SMALL = {
    "4000 short programs": "i=0; while [ $i -lt 4000 ]; do busybox true; i=$((i+1)); done",
    "a program of 4 MiB that computes": "busybox awk 'BEGIN { for (i = 0; i < 6000000; i++) s += i * i; print s }'",
    "pipes": "busybox seq 1 1500000 | busybox sed s/1/2/ | busybox md5sum",
}


def below(rounds):
    print("| programs | --no-attach, s | attaching, s | ratio (median of pairs, quartiles) |\n|---|---|---|---|")
    for what, script in SMALL.items():
        times = {False: [], True: []}
        for number in range(rounds):
            for attaching in (number % 2 == 0, number % 2 == 1):
                begun = time.monotonic()
                told = stats_of(["busybox", "sh", "-c", script], *([] if attaching else ["--no-attach"]))
                times[attaching].append(time.monotonic() - begun)
                assert told["attached"] == 0, "something was attached to"
        ratios = [a / b for a, b in zip(times[True], times[False])]
        low, middle, high = statistics.quantiles(ratios, n=4)
        without, with_it = (statistics.median(times[k]) for k in (False, True))
        print(f"| {what} | {without:.3f} | {with_it:.3f} | {middle:.3f} ({low:.3f} to {high:.3f}) |", flush=True)


def main():
    words = sys.argv[1:]
    number = int(words[1]) if len(words) > 1 else 0
    if words[:1] == ["stops"]:
        stops(number or 30)
    elif words[:1] == ["below"]:
        below(number or 21)
    else:
        sys.exit(__doc__)


main()
