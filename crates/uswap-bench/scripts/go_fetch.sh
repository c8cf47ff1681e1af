# Fetches a module from the module proxy, once, and all that it is built from.
#   go_fetch.sh MODULE@VERSION FOLDER
set -e
module=$1 folder=$2
[ -e "$folder/go.mod" ] && exit 0
source=$(cd / && go mod download -json "$module" | sed -n 's/^\t"Dir": "\(.*\)",*$/\1/p')
cp -r "$source" "$folder.part"
chmod -R u+w "$folder.part"
(cd "$folder.part" && go mod download)
mv "$folder.part" "$folder"
