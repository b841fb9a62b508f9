#!/usr/bin/env bash
# Makes .venv with everything pinned in constraints.txt, and finds Java 17+ (or installs it, as root on Debian).
# `setup.sh browser` finds Chromium for the tests of the dashboard in the same way.
# Running it again is cheap; it prints nothing but what it does.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VENV=.venv
readonly MIN_JAVA=17

say() { printf 'setup: %s\n' "$*"; }

fail() {
    printf 'setup: %s\n' "$@" >&2
    exit 1
}

is_python_311() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    local name
    for name in python3.11 python3.12 python3.13 python3.14 python3; do
        if command -v "$name" >/dev/null && is_python_311 "$name"; then
            command -v "$name"
            return
        fi
    done
    return 1
}

make_venv() {
    local python
    if [[ -x $VENV/bin/python ]] && is_python_311 "$VENV/bin/python"; then
        return
    fi
    python=$(find_python) || fail "no Python 3.11 or newer found" \
        "install one (Debian 12, Ubuntu 24.04: apt-get install python3 python3-venv), then run make again"
    say "making $VENV with $("$python" --version)"
    "$python" -m venv --clear "$VENV" || fail "$python cannot make a virtual environment" \
        "on Debian and Ubuntu: apt-get install python3-venv, then run make again"
}

install_packages() {
    local pip=("$VENV/bin/python" -m pip install -q --no-compile --disable-pip-version-check -c constraints.txt)
    local index=${PIP_INDEX_URL:-$("$VENV/bin/python" -m pip config get global.index-url 2>/dev/null || true)}
    if [[ -n $index ]]; then
        export UV_DEFAULT_INDEX=$index  # it may hold a password: not as an argument
    fi
    say "installing packages (pinned in constraints.txt)"
    # Spark comes as a source archive: pip keeps the wheel that it makes of it, which takes a minute. All others are
    # wheels, and uv fetches them side by side. Nothing is compiled before it is imported, which would take a minute.
    "${pip[@]}" --no-deps pyspark uv
    # Headrace itself is installed again each time: its kernel is compiled then.
    if ! "$VENV/bin/uv" pip install -q --python "$VENV/bin/python" -c constraints.txt --reinstall-package headrace -e '.[dev]'; then
        say "uv could not install them, pip does"
        "${pip[@]}" -e '.[dev]'
    fi
}

# Prints the major version of the given java command, or nothing.
java_major() { "$1" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]\{1,\}\).*/\2/p' | head -n 1; }

is_java_17() {
    local major
    major=$(java_major "$1") || return 1
    [[ -n $major ]] && ((major >= MIN_JAVA))
}

install_java() {
    local package
    apt-get update -qq
    # Debian 12 has 17; later releases have only newer ones, which do as well.
    for package in openjdk-17-jre-headless openjdk-21-jre-headless; do
        say "installing $package"
        if DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null; then
            return
        fi
    done
    return 1
}

find_java() {
    # Spark takes JAVA_HOME wherever it points, so a wrong one is an error even if a good java is on the PATH.
    if [[ -n ${JAVA_HOME:-} ]]; then
        is_java_17 "$JAVA_HOME/bin/java" || fail "JAVA_HOME=$JAVA_HOME holds no Java $MIN_JAVA or newer" \
            "set JAVA_HOME to one that does, or unset it to use the java on the PATH, then run make again"
        return
    fi
    if command -v java >/dev/null && is_java_17 java; then
        return
    fi
    if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        install_java && command -v java >/dev/null && is_java_17 java && return
    fi
    fail "Spark needs Java $MIN_JAVA or newer, and none was found" \
        "Debian, Ubuntu:  sudo apt-get install openjdk-17-jre-headless" \
        "Fedora, RHEL:    sudo dnf install java-17-openjdk-headless" \
        "macOS:           brew install openjdk@17, then set JAVA_HOME to it" \
        "or unpack any JDK 17+ and set JAVA_HOME to its directory; then run make again"
}

# Not having one is no failure: the tests of the dashboard are skipped then, and say so.
find_browser() {
    local name
    for name in chromium chromium-browser google-chrome google-chrome-stable; do
        if command -v "$name" >/dev/null; then
            return
        fi
    done
    if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        say "installing chromium, for the tests of the dashboard"
        apt-get update -qq || true
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null && return
    fi
    say "there is no Chromium, so the tests of the dashboard will be skipped; on Debian: sudo apt-get install chromium"
}

main() {
    if [[ ${1:-} == browser ]]; then
        find_browser
        return
    fi
    local part newer=
    for part in pyproject.toml constraints.txt scripts/setup.sh hatch_build.py src/headrace/records/kernel/compiled.pyx; do
        [[ $VENV/.ready -nt $part ]] || newer=$part
    done
    [[ -n $newer ]] || return 0
    make_venv
    install_packages
    find_java
    touch "$VENV/.ready"
    say "ready"
}

main "$@"
