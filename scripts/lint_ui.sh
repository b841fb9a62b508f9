#!/usr/bin/env bash
# Lints the dashboard's modules, and checks their format, with Biome, which npm fetches by name; without npm it says so.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly BIOME=@biomejs/biome@2.6.6

if ! npx --yes "$BIOME" --version >/dev/null 2>&1; then
    echo "the dashboard's modules are not linted: npx, of Node.js, is missing or cannot fetch $BIOME"
    exit 0
fi
npx --yes "$BIOME" ci
