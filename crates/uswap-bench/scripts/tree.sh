# A tree of C files, compiled and run. Arguments: jobs, the folder.
set -eu
make -s -C "$2" clean
make -s -j"$1" -C "$2" program >make.log 2>&1 || { tail -n 3 make.log >&2; exit 1; }
"$2/program"
