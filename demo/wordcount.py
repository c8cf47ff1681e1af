"""Counts words in a collection of notes that it keeps in memory: about 1 GiB of ordinary Python strings.

Nothing here knows of uswap. The same seed gives the same notes, so the last line is the same wherever it runs.
"""

import sys
import time
import zlib
from collections import Counter

NOTES = 3_400_000
WORDS = (
    "page memory swap kernel reads writes cold warm region thread fault list queue device network disk pool "
    "budget program process child parent signal pipe socket folder file record index table key value order"
).split()


def note(number):
    """One note of some twenty words."""
    state = number * 2654435761 % 4294967296
    words = []
    for _ in range(20):
        state = (state * 1103515245 + 12345) % 2147483648
        words.append(WORDS[(state >> 16) % len(WORDS)])
    return f"note {number} of user {state % 9973}: {' '.join(words)}, filed under {number * 7919 % 1000003}; open"


def say(text):
    print(text, file=sys.stderr, flush=True)


def main():
    start = time.monotonic()
    # A few thousand sentences are mixed by slicing, which is faster than making each word by word.
    sentences = [note(number) for number in range(4096)]
    notes = []
    for number in range(NOTES):
        left, right = sentences[number % 4096], sentences[number * 7919 % 4093]
        notes.append(f"{number:09d} {left[: 60 + number % 90]} / {right[20:]}")
    say(f"  {len(notes)} notes in memory after {time.monotonic() - start:.1f} s")
    counts, checksum = Counter(), 0
    for first in range(0, NOTES, 50_000):
        batch = notes[first : first + 50_000]
        counts.update(" ".join(batch[::25]).split())
        checksum = zlib.crc32("\n".join(batch).encode(), checksum)
    say(f"  all of them read again after {time.monotonic() - start:.1f} s")
    common = ", ".join(f"{word} {count}" for word, count in counts.most_common(3))
    print(f"{len(notes)} notes, {len(counts)} different words, most: {common}; checksum {checksum:08x}")


main()
