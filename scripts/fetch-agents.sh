#!/bin/bash
# Lets npm fetch packages, as they are: nothing of them is run or unpacked. Beside each is the checksum
# that the registry has for it.
# Usage: scripts/fetch-agents.sh DIR SPEC...      (as in name@version)
set -euo pipefail

dir=$1
shift
mkdir -p "$dir"
for spec in "$@"; do
  # npm's own name for the file: @scope/name@1.2 becomes scope-name-1.2.tgz
  name=${spec%@*}
  file=${name#@}
  file=${file//\//-}-${spec##*@}.tgz
  [ -e "$dir/$file" ] && [ -e "$dir/$file.integrity" ] && continue
  echo "fetching $spec"
  rm -rf "$dir/.new"
  mkdir "$dir/.new"
  npm pack --silent --pack-destination "$dir/.new" "$spec" >/dev/null
  npm view --silent "$spec" dist.integrity >"$dir/.new/integrity"
  mv "$dir/.new/integrity" "$dir/$file.integrity"
  mv "$dir/.new/$file" "$dir/$file"
  rmdir "$dir/.new"
done
