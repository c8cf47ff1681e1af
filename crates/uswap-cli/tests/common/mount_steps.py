"""Does the same random steps in a mounted folder and in a plain one, and compares each result: bytes, names, metadata
and errors. Arguments: the mounted folder, its source, a plain folder, a seed, the number of steps, how many
other files there are, some of which are looked at before each step, and the share of steps behind the mount's back."""

import errno
import fcntl
import mmap
import os
import random
import stat
import sys
import time

mounted, source, plain, seed, steps, crowd, behind_share = sys.argv[1:]
chance = random.Random(int(seed))
names = ["a", "b", "c", "folder", "folder/d", "folder/e", "other", "other/f"]
descriptors = {}


def outcome(step, folder):
    """What a step gives in a folder: a value, or an error number."""
    try:
        return step(folder)
    except OSError as error:
        return errno.errorcode[error.errno]


def write(name, offset, data, flags):
    def step(folder):
        file = os.open(folder + "/" + name, os.O_RDWR | flags, 0o640)
        try:
            return os.write(file, data) if flags & os.O_APPEND else os.pwrite(file, data, offset)
        finally:
            os.close(file)
    return step


def read(name, offset, length):
    def step(folder):
        file = os.open(folder + "/" + name, os.O_RDONLY)
        try:
            return os.pread(file, length, offset)
        finally:
            os.close(file)
    return step


def map_file(name, offset, data):
    """Reads through a shared mapping, writes there, and reads with pread what was written."""
    def step(folder):
        file = os.open(folder + "/" + name, os.O_RDWR)
        try:
            size = os.fstat(file).st_size
            if offset + len(data) > size:
                return size
            with mmap.mmap(file, size) as view:
                before = view[offset:offset + 20000]
                view[offset:offset + len(data)] = data
                view.flush()
            return before, os.pread(file, 20000, offset)
        finally:
            os.close(file)
    return step


def keep_open(name):
    def step(folder):
        file = descriptors.pop((folder, name), None)
        if file is not None:
            data = os.pread(file, 1 << 20, 0)
            os.close(file)
            return data
        descriptors[folder, name] = os.open(folder + "/" + name, os.O_RDONLY)
        return None
    return step


def metadata(name):
    def step(folder):
        found = os.lstat(folder + "/" + name)
        kind = stat.S_IFMT(found.st_mode)
        size = None if kind == stat.S_IFDIR else found.st_size
        return found.st_mode, found.st_nlink, found.st_uid, found.st_gid, size
    return step


def listing(name):
    def step(folder):
        return sorted(entry for entry in os.listdir(folder + "/" + name) if "crowd" not in entry)
    return step


def data_or_hole(name, offset):
    def step(folder):
        if os.path.isdir(folder + "/" + name):
            return None
        file = os.open(folder + "/" + name, os.O_RDONLY)
        try:
            return os.lseek(file, offset, os.SEEK_DATA)
        finally:
            os.close(file)
    return step


def attribute(name, value):
    def step(folder):
        path = folder + "/" + name
        if value is None:
            os.removexattr(path, "user.test")
        else:
            os.setxattr(path, "user.test", value)
        return os.listxattr(path), value and os.getxattr(path, "user.test")
    return step


def lock(name):
    def step(folder):
        with open(folder + "/" + name) as one, open(folder + "/" + name) as two:
            fcntl.flock(one, fcntl.LOCK_EX)
            fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return step


def some_data():
    length = chance.choice([1, 7, 100, 4095, 4096, 4097, 9000, 70000])
    return chance.choice([bytes([chance.randrange(256)]) * length, chance.randbytes(length)])


def some_offset():
    return chance.choice([0, 1, 4095, 4096, 4097, 12288, chance.randrange(300000)])


def next_step():
    name, other = chance.choice(names), chance.choice(names)
    steps = [
        (8, lambda: write(name, some_offset(), some_data(), chance.choice([os.O_CREAT, 0, os.O_CREAT | os.O_APPEND]))),
        (12, lambda: read(name, some_offset(), chance.choice([1, 4096, 5000, 200000, 1 << 20]))),
        (4, lambda: map_file(name, some_offset(), some_data())),
        (2, lambda: lambda f, size=some_offset(): os.truncate(f + "/" + name, size)),
        (1, lambda: lambda f: os.close(os.open(f + "/" + name, os.O_WRONLY | os.O_TRUNC))),
        (1, lambda: lambda f: os.close(os.open(f + "/" + name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o604))),
        (3, lambda: lambda f: os.rename(f + "/" + name, f + "/" + other)),
        (2, lambda: lambda f: os.unlink(f + "/" + name)),
        (2, lambda: lambda f: os.mkdir(f + "/" + name, 0o711)),
        (1, lambda: lambda f: os.rmdir(f + "/" + name)),
        (2, lambda: lambda f: os.link(f + "/" + name, f + "/" + other)),
        (2, lambda: lambda f: os.symlink(other, f + "/" + name)),
        (1, lambda: lambda f: os.readlink(f + "/" + name)),
        (1, lambda: lambda f, mode=chance.choice([0o600, 0o755, 0o4711]): os.chmod(f + "/" + name, mode)),
        (1, lambda: lambda f: os.chown(f + "/" + name, 12, 34)),
        (1, lambda: lambda f: os.utime(f + "/" + name, (1000, 2000)) or os.stat(f + "/" + name).st_mtime),
        (1, lambda: lambda f: os.mkfifo(f + "/" + name, 0o622)),
        (2, lambda: attribute(name, chance.choice([None, b"x", b"y" * 100]))),
        (1, lambda: data_or_hole(name, some_offset())),
        (1, lambda: lock(name)),
        (2, lambda: keep_open(name)),
        (5, lambda: metadata(name)),
        (2, lambda: listing(chance.choice([".", "folder", "other"]))),
    ]
    return chance.choices([step for _, step in steps], [weight for weight, _ in steps])[0](), name


def is_fifo(name):
    try:
        return stat.S_ISFIFO(os.stat(plain + "/" + name).st_mode)
    except OSError:
        return False


crowd = [f"{source}/crowd{number % 5}/f{number}" for number in range(int(crowd))]
for path in crowd:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(path)


def look_at_the_crowd():
    for path in chance.sample(crowd, len(crowd) // 6):
        if os.stat(path.replace(source, mounted, 1)).st_size != len(path):
            sys.exit(f"{path} differs")


for number in range(int(steps)):
    look_at_the_crowd()
    step, name = next_step()
    # An open of a FIFO waits for the other side.
    if is_fifo(name):
        step = lambda folder, name=name: os.unlink(folder + "/" + name)
    # Now and then a step is done behind the back of the mount; a file that is open sees it a second later only, so
    # it is read anew.
    behind = chance.random() < float(behind_share) and not descriptors
    results = [outcome(step, folder) for folder in [source if behind else mounted, plain]]
    if results[0] != results[1]:
        source_says = str(outcome(step, source))[:200]
        sys.exit(f"step {number} on {name}: {str(results[0])[:200]} mounted, {str(results[1])[:200]} plain, "
                 f"now {source_says} in the source")

    # What was changed a moment ago is not cached yet. After a rest all files are read, and cached, and read again.
    if number % 40 == 0:
        time.sleep(0.04)
        for name in names * 2:
            step = read(name, 0, 1 << 20)
            results = [None if is_fifo(name) else outcome(step, folder) for folder in [mounted, plain]]
            if results[0] != results[1]:
                sys.exit(f"after step {number} {name} differs")

for file in descriptors.values():
    os.close(file)
for here, _, files in os.walk(plain):
    for file in files:
        path = os.path.join(here, file)
        if stat.S_ISREG(os.lstat(path).st_mode):
            same = [open(path.replace(plain, other, 1), "rb").read() for other in [plain, mounted, source]]
            if not same[0] == same[1] == same[2]:
                sys.exit(f"{path} differs at the end")
print("same")
