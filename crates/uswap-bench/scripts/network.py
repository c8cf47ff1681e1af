#!/usr/bin/env python3
"""Figures of swap over NBD, as a table: docs/benchmarks/network.md says what each means.

    network.py delay [1ms 10ms]        beside the same client without reading ahead and with one read at a time
    network.py document [SERVER ...]   readers of four times the budget in a tight cgroup (root; cgroup v1)
    network.py document --restarts ... the same while the server is killed and started again every five seconds
    network.py sequential              swap-in in order beside nbdcopy from the same server
    network.py single                  single faults beside the server's own round trip
    network.py loopback                TCP throughput of a program that does not swap, under uswap and without

Needs nbdkit, nbd-server, qemu-nbd, nbdcopy as far as they are asked for, and the release binaries beside this repository's
target folder. Everything it starts it ends.
"""
import json
import os
import pathlib
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
BINARIES = pathlib.Path(os.environ.get("USWAP_BINARIES", ROOT / "target/release"))
USWAP, WORKLOAD = BINARIES / "uswap", BINARIES / "uswap-workload"
PROGRAMS = ROOT / "tests/programs"
PORT = int(os.environ.get("NBD_PORT", 10890))
MIB = 1 << 20


class Server:
    """One of three servers over a file in memory, which outlives it."""

    def __init__(self, kind, size, delay=None):
        self.kind, self.delay = kind, delay
        self.folder = tempfile.TemporaryDirectory(prefix="uswap-net-", dir="/dev/shm")
        self.store = pathlib.Path(self.folder.name) / "store"
        with open(self.store, "wb") as store:
            store.truncate(size)
        self.pid_file = pathlib.Path(self.folder.name) / "pid"
        self.process = None
        self.start()

    def command(self):
        if self.kind == "nbdkit":
            filters = ["--filter=delay"] if self.delay else []
            delays = [f"delay-read={self.delay}", f"delay-write={self.delay}"] if self.delay else []
            return ["nbdkit", "-f", "-i", "127.0.0.1", "-p", str(PORT), *filters, "file", str(self.store), *delays]
        if self.kind == "qemu-nbd":
            return ["qemu-nbd", "-t", "-e", "16", "-b", "127.0.0.1", "-p", str(PORT), "-f", "raw", "-x", "", str(self.store)]
        config = pathlib.Path(self.folder.name) / "config"
        config.write_text(f"[generic]\nport={PORT}\nlistenaddr=127.0.0.1\n[swap]\nexportname={self.store}\ntrim=true\nflush=true\n")
        # It goes to the background, and writes its number there.
        return ["nbd-server", "-C", str(config), "-p", str(self.pid_file)]

    def uri(self):
        return f"nbd://127.0.0.1:{PORT}/" + ("swap" if self.kind == "nbd-server" else "")

    def start(self):
        self.process = subprocess.Popen(self.command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        for _ in range(200):
            try:
                return socket.create_connection(("127.0.0.1", PORT), 1).close()
            except OSError:
                time.sleep(0.02)
        sys.exit(f"{self.kind} does not listen")

    def stop(self):
        try:
            os.killpg(self.process.pid, 9)
        except ProcessLookupError:
            pass
        self.process.wait()
        if self.pid_file.exists():
            daemon = int(self.pid_file.read_text())
            for pid in [daemon, *children_of(daemon)]:
                try:
                    os.kill(pid, 9)
                except ProcessLookupError:
                    pass
            self.pid_file.unlink()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        self.folder.cleanup()


def children_of(pid):
    """A server of one process for each connection."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    return [int(word) for word in found.split()]


def compiled(name):
    out = pathlib.Path(tempfile.gettempdir()) / f"uswap-net-{os.getuid()}-{name}"
    subprocess.run(["cc", "-O2", "-pthread", "-o", out, PROGRAMS / f"{name}.c"], check=True)
    return str(out)


def run(words, options, faults="", wrapper=(), timeout=85):
    """Status, seconds, output, and figures of a run."""
    with tempfile.NamedTemporaryFile("r") as stats:
        line = [*wrapper, str(USWAP), "run", "-q", "--stats", stats.name, *options, "--", *map(str, words)]
        begun = time.monotonic()
        try:
            done = subprocess.run(line, env={**os.environ, "USWAP_FAULT_POINTS": faults}, capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            return "timeout", time.monotonic() - begun, "", {}
        text = pathlib.Path(stats.name).read_text()
        if done.returncode:
            print(done.stderr[-500:], file=sys.stderr)
        return done.returncode, time.monotonic() - begun, done.stdout, json.loads(text or "{}")


def delay(delays):
    print("| delay | workload | MiB/s visited | one read | times | pages/s from the server | one read | times |\n|---|---|---|---|---|---|---|---|")
    for time_of in delays or ["1ms", "10ms"]:
        with Server("nbdkit", 1 << 30, time_of) as server:
            for pattern, threads in [("seq", 1), ("zipf-0.5", 16), ("zipf-1.2", 16)]:
                visited, brought = [], []
                for faults in ["", "no-prefetch,one-read,no-read-queue"]:
                    words = [WORKLOAD, "memory", "--pattern", pattern, "--threads", threads, "--mib", 192, "--seconds", 8,
                             "--operations", 50000000, "--content", "incompressible", "--check-seconds", 0]
                    status, _, out, stats = run(words, ["--ram", "64M", "--pool", "5", "--swap", server.uri()], faults)
                    told = json.loads(out.splitlines()[-1]) if status == 0 else {}
                    visited.append(told.get("read_mib_per_second", float("nan")))
                    brought.append(stats.get("pswpin", 0) / told.get("visit_seconds", float("nan")))
                print(f"| {time_of} | {pattern}, {threads} threads | {visited[0]:.1f} | {visited[1]:.1f} | {visited[0] / visited[1]:.1f} "
                      f"| {brought[0]:.0f} | {brought[1]:.0f} | {brought[0] / brought[1]:.1f} |", flush=True)


def document(arguments):
    restarts = "--restarts" in arguments
    kinds = [word for word in arguments if not word.startswith("-")] or ["nbdkit", "nbd-server", "qemu-nbd"]
    budget, readers = 256 * MIB, 8 * os.cpu_count()
    program = compiled("linear_readers")
    print("| server | content | run | status | seconds | read from it | our peak | cgroup's peak | killed by the kernel | restarts |\n|---|---|---|---|---|---|---|---|---|---|")
    for kind in kinds:
        for noisy, number in [(1, 1), (1, 2), (1, 3), (0, 1)]:
            group = pathlib.Path(f"/sys/fs/cgroup/memory/uswap-net-{os.getpid()}")
            group.mkdir()
            limit = budget + budget // 20 + 32 * MIB
            (group / "memory.limit_in_bytes").write_text(str(limit))
            join = ["bash", "-c", f"echo $$ > {group}/cgroup.procs && exec \"$@\"", "join"]
            with Server(kind, 2 << 30) as server:
                over, count = threading.Event(), [0]

                def kill():
                    while not over.wait(5):
                        server.stop()
                        server.start()
                        count[0] += 1

                killer = threading.Thread(target=kill)
                if restarts:
                    killer.start()
                words = [program, "--processes", readers, "--memory", 4 * budget // MIB, "--passes", 12 if restarts else 2, "--incompressible", noisy]
                status, seconds, out, stats = run(words, ["--ram", "256M", "--swap", server.uri()], wrapper=join, timeout=300)
                over.set()
                if restarts:
                    killer.join()
            peak = int((group / "memory.max_usage_in_bytes").read_text()) / MIB
            kills = [line.split()[1] for line in (group / "memory.oom_control").read_text().splitlines() if line.startswith("oom_kill ")]
            time.sleep(0.3)
            group.rmdir()
            read, ours = stats.get("pswpin", 0) / 256, stats.get("ram_peak_bytes", 0) / MIB
            print(f"| {kind} | {'random' if noisy else 'text'} | {number} | {status} | {seconds:.1f} | {read:.0f} MiB | {ours:.0f} MiB | {peak:.0f} of {limit / MIB:.0f} MiB | {' '.join(kills)} | {count[0]} |", flush=True)


def copy_rate(server):
    """MiB/s of nbdcopy, of 256 MiB of bytes that do not compress."""
    begun = time.monotonic()
    subprocess.run(["nbdcopy", server.uri(), "null:"], check=True)
    # The rest of the export is a hole, which nbdcopy asks for and does not read.
    return 256 / (time.monotonic() - begun)


def fresh(server):
    os.truncate(server.store, 0)
    os.truncate(server.store, 1 << 30)


FILL_AND_READ = """
import mmap, os, sys, time
size = 256 << 20
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, size, 1 << 20):
    memory[at:at + (1 << 20)] = os.urandom(1 << 20)
expected = bytes(memory[at] for at in range(0, size, 4096))
print(flush=True)
sys.stdin.readline()
begun = time.monotonic()
seen = bytes(memory[at] for at in range(0, size, 4096))
print(time.monotonic() - begun, seen == expected, flush=True)
"""


def warm(mib):
    """Touches memory and frees it: a virtual machine's host gives memory on first touch only, which takes longer than all the rest."""
    subprocess.run([sys.executable, "-c", f"bytearray(b'1') * ({mib} << 20)"], check=True)


def swap_in_rate(server):
    """MiB/s at which a program's memory comes back in order when there is room for it again."""
    name = f"network-{os.getpid()}"
    ask = lambda *words: subprocess.run([str(USWAP), *words], capture_output=True, text=True, check=True).stdout
    line = [str(USWAP), "run", "-q", "--name", name, "--ram", "64M", "--pool", "5", "--swap", server.uri(), "--", sys.executable, "-c", FILL_AND_READ]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        program.stdout.readline()
        ask("limit", name, "512M")
        before = json.loads(ask("status", name, "--json"))["figures"]["pswpin"]
        warm(512)
        print(file=program.stdin, flush=True)
        seconds, right = program.stdout.readline().split()
        read = json.loads(ask("status", name, "--json"))["figures"]["pswpin"] - before
    assert right == "True", "wrong bytes"
    return read / 256 / float(seconds)


def sequential(_):
    """Alternating, since the machine's speed changes; nbdcopy is measured before and after each of ours."""
    words = [WORKLOAD, "memory", "--pattern", "seq", "--mib", 256, "--seconds", 4, "--operations", 5000000, "--content", "incompressible", "--check-seconds", 0]
    sweeps, returns, copies = [], [], []
    with Server("nbdkit", 1 << 30) as server:
        for _ in range(7):
            with open(server.store, "r+b") as store:
                store.write(os.urandom(256 * MIB))
            copies.append(copy_rate(server))
            fresh(server)
            returns.append(swap_in_rate(server))
            _, _, text, _ = run(words, ["--ram", "64M", "--pool", "5", "--swap", server.uri()])
            sweeps.append(json.loads(text.splitlines()[-1])["read_mib_per_second"])
            fresh(server)
    print("| what | MiB/s, median of 7 | of nbdcopy |\n|---|---|---|")
    base = statistics.median(copies)
    for what, rates in [("nbdcopy to nothing", copies), ("swap-in: 190 MiB come back in order, nothing goes", returns),
                        ("sweep: 256 MiB in 64 MiB, as much goes as comes", sweeps)]:
        print(f"| {what} | {statistics.median(rates):.0f} ({min(rates):.0f}-{max(rates):.0f}) | {statistics.median(rates) / base:.2f} |")


def round_trip():
    """Seconds of a 4 KiB read from the server, one at a time, by the plainest client there is: the median of 5000."""
    link = socket.create_connection(("127.0.0.1", PORT))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    whole = lambda n: b"".join(iter_bytes(link, n))
    whole(18)
    link.sendall(struct.pack(">I", 3) + b"IHAVEOPT" + struct.pack(">II", 1, 0))
    whole(10)
    times, buffer = [], bytearray(4096 + 16)
    for n in range(5000):
        request = struct.pack(">IHHQQI", 0x25609513, 0, 0, n, 4096 * (n * 7919 % 50000), 4096)
        begun = time.perf_counter()
        link.sendall(request)
        got = 0
        while got < len(buffer):
            got += link.recv_into(memoryview(buffer)[got:])
        times.append(time.perf_counter() - begun)
    link.close()
    return statistics.median(times)


def iter_bytes(link, left):
    while left:
        part = link.recv(left)
        left -= len(part)
        yield part


def single(_):
    with Server("nbdkit", 1 << 30) as server:
        words = [WORKLOAD, "memory", "--pattern", "random", "--mib", 192, "--seconds", 5, "--content", "incompressible", "--check-seconds", 0]
        print("| single faults at random, p50 | us |\n|---|---|")
        ours, theirs = [], []
        for _ in range(3):
            _, _, _, stats = run(words, ["--ram", "64M", "--pool", "5", "--swap", server.uri()], "no-prefetch")
            ours.append(stats["fault_latency"]["device"]["p50_ns"] / 1000)
            theirs.append(round_trip() * 1e6)
        print(f"| a fault, from its reading to the installed page | {statistics.median(ours):.1f} |\n| the server's round trip | {statistics.median(theirs):.1f} |")


STREAM = """
import socket, sys, threading, time
server = socket.create_server(("127.0.0.1", 0))
def sink():
    link, _ = server.accept()
    room = bytearray(1 << 18)
    while link.recv_into(room): pass
reader = threading.Thread(target=sink); reader.start()
link = socket.create_connection(server.getsockname())
block, sent, begun = bytes(1 << 18), 0, time.monotonic()
while time.monotonic() - begun < 2.0:
    link.sendall(block); sent += len(block)
seconds = time.monotonic() - begun
link.close(); reader.join()
print(sent / seconds / (1 << 20))
"""


def loopback(_):
    rates = {False: [], True: []}
    for n in range(54):
        under = n % 2 == 1
        words = [sys.executable, "-c", STREAM]
        line = [str(USWAP), "run", "-q", "--ram", "512M", "--", *words] if under else words
        rates[under].append(float(subprocess.run(line, capture_output=True, text=True, check=True).stdout))
    plain, with_uswap = statistics.median(rates[False]), statistics.median(rates[True])
    print(f"| loopback TCP, 27 alternating pairs | MiB/s |\n|---|---|\n| without uswap | {plain:.0f} |\n| under uswap run | {with_uswap:.0f} ({with_uswap / plain:.3f}) |")


if __name__ == "__main__":
    parts = {f.__name__: f for f in [delay, document, sequential, single, loopback]}
    if len(sys.argv) < 2 or sys.argv[1] not in parts:
        sys.exit(__doc__)
    parts[sys.argv[1]](sys.argv[2:])
