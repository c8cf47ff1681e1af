# Arrays that are filled, sorted, permuted and reduced. Argument: memory in MiB.
import sys

import numpy

n = int(sys.argv[1]) * (1 << 20) // 8 // 4
numbers = (numpy.arange(n, dtype=numpy.uint64) * numpy.uint64(2654435761)) % numpy.uint64(n * 8 + 1)
ordered = numpy.sort(numbers)
places = numpy.argsort(numbers, kind="stable")
same = bool((numbers[places] == ordered).all())
sums = [int(ordered[k::7].sum()) for k in range(7)]
print("answer", same, int(ordered.sum()) == int(numbers.sum()), sums)
