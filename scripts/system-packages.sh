#!/usr/bin/env bash
# Installs what a make target needs from Debian: `system-packages.sh venv|testbed`.
# As root or through sudo; without either it prints the line to run and fails.
set -euo pipefail

python="${PYTHON:-python3}"
missing=()

# require PACKAGE COMMAND...: the package is missing when the command fails.
require() {
    local package="$1"
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}

on_path() { command -v "$1"; }

java_17() {
    local version
    version="$(java -XshowSettings:properties -version 2>&1 | sed -n 's/ *java.specification.version = //p')"
    [ "${version%%.*}" -ge 17 ]
}

case "${1:-}" in
venv)
    require python3-venv "$python" -c "import ensurepip, venv"
    ;;
testbed)
    require default-jre-headless java_17 # Debian 12: Java 17
    require maven on_path mvn
    require openssl on_path openssl
    require systemd on_path systemd-analyze
    ;;
*)
    echo "usage: system-packages.sh venv|testbed" >&2
    exit 64
    ;;
esac

if [ "${#missing[@]}" -gt 0 ]; then
    install="apt-get install --yes --no-install-recommends ${missing[*]}"
    if [ "$(id -u)" = 0 ]; then
        as_root=(env)
    elif command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
        as_root=(sudo)
    else
        as_root=()
    fi
    if [ "${#as_root[@]}" = 0 ] || ! command -v apt-get >/dev/null; then
        echo "Missing system packages. Run as root, then try again:" >&2
        echo "    apt-get update && $install" >&2
        exit 69
    fi
    echo "Installing system packages: ${missing[*]}"
    "${as_root[@]}" apt-get update --quiet=2
    # shellcheck disable=SC2086  # the line is words
    "${as_root[@]}" DEBIAN_FRONTEND=noninteractive $install --quiet=2 >/dev/null
fi

if ! "$python" -c "import sys; sys.exit(sys.version_info < (3, 11))"; then
    echo "corald needs Python 3.11 or newer; name one: make PYTHON=python3.11 …" >&2
    exit 69
fi
