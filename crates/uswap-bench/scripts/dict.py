# A dictionary of small lists: built, an eighth of it looked up at random and changed, then read from end to end. Argument: memory in MiB.
import sys

n = int(sys.argv[1]) * 3300
table = {f"key-{i}": [i, i * 7] for i in range(n)}
at, total = 1, 0
for _ in range(n // 8):
    at = (at * 1103515245 + 12345) % n
    entry = table[f"key-{at}"]
    total += entry[1] - 6 * entry[0] - at
    entry[0] += 1
    entry[1] += 6
# Each look-up finds exactly the key's own number again, whatever was added before.
print("answer", total, len(table), sum(entry[1] - 6 * entry[0] for entry in table.values()) == n * (n - 1) // 2)
