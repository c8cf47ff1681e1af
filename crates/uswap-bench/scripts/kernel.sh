# Part of a kernel, compiled. Arguments: jobs, the folder of the objects, the folder of the sources.
set -eu
rm -rf "$2/mm"
make -s -j"$1" -C "$3" O="$2" ARCH=x86 mm/ >make.log 2>&1 || { tail -n 3 make.log >&2; exit 1; }
find "$2/mm" -name '*.o' ! -name 'built-in*' | sort | xargs cat | cksum | sed 's/^/answer /'
