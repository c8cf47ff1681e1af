# Builds a Go program and all it is made of, with nothing cached. The same sources give the same binary.
#   go_build.sh FOLDER
set -e
cd "$1"
GOCACHE=$(mktemp -d) GOTMPDIR=$GOCACHE
export GOCACHE GOTMPDIR GOFLAGS=-buildvcs=false CGO_ENABLED=0 GOPROXY=off
trap 'rm -rf "$GOCACHE"' EXIT
go build -trimpath -o "$GOCACHE/program" .
echo "answer $(sha256sum <"$GOCACHE/program")"
