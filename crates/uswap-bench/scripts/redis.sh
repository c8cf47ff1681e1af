# A Redis server in memory and a client that loads it. Arguments: the client and its options.
set -u
socket=$PWD/redis.sock
rm -f "$socket"
redis-server --port 0 --unixsocket "$socket" --save "" --appendonly no --dir "$PWD" >redis.log 2>&1 &
server=$!
"$@" --socket "$socket"
status=$?
kill "$server"
wait "$server"
exit "$status"
