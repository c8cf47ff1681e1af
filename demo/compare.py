"""Runs wordcount.py plain, in a cgroup of 256 MiB, and under `uswap run --ram 256M`; compares and prints a table."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

USWAP = sys.argv[1]
JOB = [sys.executable, str(Path(__file__).with_name("wordcount.py"))]
MIB = 1 << 20
BUDGET = 256
PATIENCE = 100  # seconds for one run


class Run:
    """One run: its answer, status, seconds, and peak memory in MiB."""

    def __init__(self, title, command, prepare=None):
        print(f"{title}:", flush=True)
        begun = time.monotonic()
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=prepare)
        try:
            self.answer = child.communicate(timeout=PATIENCE)[0].strip()
        except subprocess.TimeoutExpired:
            child.terminate()  # the keeper passes it on to the program
            sys.exit(f"demo: not finished after {PATIENCE} s; this machine is too slow or too busy for the demo")
        self.status = child.returncode
        self.seconds = time.monotonic() - begun
        self.peak = None


def plain():
    """Without uswap, with the peak as the kernel counts it."""
    wrapper = (
        "import resource, subprocess, sys;"
        "status = subprocess.call(sys.argv[2:]);"
        "peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss;"
        "open(sys.argv[1], 'w').write(str(peak));"
        "sys.exit(status)"
    )
    with tempfile.NamedTemporaryFile("r") as peak:
        run = Run("without uswap, memory unlimited", [sys.executable, "-c", wrapper, peak.name, *JOB])
        run.peak = int(peak.read()) / 1024
    return run


def make_group():
    """A memory cgroup of BUDGET MiB without swap, or None where none can be made."""
    v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    unified = not (v1 / "memory.limit_in_bytes").exists()
    group = (v2 if unified else v1) / f"uswap-demo-{os.getpid()}"
    try:
        if unified:
            (v2 / "cgroup.subtree_control").write_text("+memory")
        group.mkdir()
    except OSError:
        return None
    files = ["memory.max"] if unified else ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
    for file in files:
        try:
            (group / file).write_text(str(BUDGET * MIB))
        except OSError:
            pass  # no accounting of kernel swap
    if unified and (group / "memory.swap.max").exists():
        (group / "memory.swap.max").write_text("0")
    return group


def limited():
    """Without uswap in a cgroup of the same size: what a container would do."""
    group = make_group()
    if not group:
        print("(not shown: the same program in a cgroup of that size; that needs root and a memory cgroup)")
        return None
    join = group / "cgroup.procs"
    try:
        return Run(f"without uswap in a cgroup of {BUDGET} MiB", JOB, lambda: join.write_text(str(os.getpid())))
    finally:
        for _ in range(50):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.02)


def under_uswap():
    with tempfile.TemporaryDirectory() as folder:
        stats = Path(folder, "stats.json")
        options = ["--ram", f"{BUDGET}M", "--stats", str(stats)]
        run = Run(f"uswap run --ram {BUDGET}M", [USWAP, "run", *options, "--", *JOB])
        run.stats = json.loads(stats.read_text()) if stats.exists() else {}
        run.peak = run.stats.get("ram_peak_bytes", 0) / MIB
    return run


def row(title, run):
    if run is None:
        return
    peak = f"{run.peak:.0f} MiB" if run.peak else "-"
    ending = "finished" if run.status == 0 else f"killed by signal {-run.status}" if run.status < 0 else f"status {run.status}"
    print(f"{title:<38} {run.seconds:>8.1f} s {peak:>10}   {ending}")


def where_the_pages_went(stats):
    mib = lambda name, page=4096: f"{stats.get(name, 0) * page / MIB:>8.0f} MiB"
    print("\nWhere the pages went")
    print(f"  taken out of RAM                     {mib('pgsteal')}")
    print(f"  compressed into the pool             {mib('zswpout')}")
    print(f"  written to the swap file             {mib('pswpout')}")
    print(f"  brought back from the pool           {mib('zswpin')}")
    print(f"  brought back from the swap file      {mib('pswpin')}")
    print(f"  asked back before they had left      {mib('soft_faults')}")
    faults = stats.get("fault_latency", {}).get("pool", {})
    if faults.get("count"):
        print(f"  a page from the pool took            {faults['p50_ns'] / 1000:>8.0f} us (half of them), "
              f"{faults['p99_ns'] / 1000:.0f} us (99 of 100)")


def main():
    free, killed, ours = plain(), limited(), under_uswap()
    print(f"\n{'':<38} {'time':>10} {'peak RAM':>10}")
    row("plain", free)
    row(f"plain, in a cgroup of {BUDGET} MiB", killed)
    row(f"uswap run --ram {BUDGET}M", ours)
    where_the_pages_went(ours.stats)
    print(f"\n{free.answer}")
    if ours.status != 0 or ours.answer != free.answer:
        sys.exit(f"demo: ANOTHER ANSWER under uswap (status {ours.status}): {ours.answer!r}")
    print("The answer under uswap is the same.")


main()
