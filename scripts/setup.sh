#!/bin/sh
# Set up everything that `make test` and `make demo` need, on Debian 12 or newer (and its derivatives):
# Debian packages that are missing, a Python of 3.11 or newer, .venv with the locked dependencies, the project itself.
# May be run again at any time: what is there already is left alone, and an unchanged set-up takes no time.
set -eu
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

PATH=$PATH:/usr/sbin:/sbin
export PATH DEBIAN_FRONTEND=noninteractive

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null 2>&1; then
        sudo -n -E "$@" || die "needs root for: $* (run as root, or allow sudo without a password)"
    else
        die "needs root or sudo for: $*"
    fi
}

has() { command -v "$1" >/dev/null 2>&1; }
has_postgres() { has initdb || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; }

missing=
need() { # need PACKAGE PROGRAM...: the package, unless all its programs are there
    package=$1
    shift
    for program in "$@"; do
        has "$program" || { missing="$missing $package"; return; }
    done
}
need openvswitch-switch ovs-vswitchd ovsdb-server ovs-vsctl ovs-ofctl ovs-appctl ovsdb-tool
need iproute2 ip bridge
need nftables nft
need iputils-ping ping
need ethtool ethtool
need tcpdump tcpdump
need curl curl
need openssl openssl
need procps ps
need util-linux setpriv
need systemd systemd-analyze
need busybox busybox
need dnsmasq-base dnsmasq
need chromium chromium
need mmdebstrap mmdebstrap
need shellcheck shellcheck
need prometheus promtool
has_postgres || missing="$missing postgresql"

find_python() {
    for python in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
        [ -n "$python" ] && has "$python" &&
            "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 &&
            { command -v "$python"; return; }
    done
    return 1
}
find_python >/dev/null || missing="$missing python3 python3-venv"

if [ -n "$missing" ]; then
    has apt-get || die "not installed, and there is no apt-get to install them:$missing"
    say "installing Debian packages:$missing"
    # Servers that come with the packages are not wanted: tests start private ones. Where the machine already has a
    # policy on starting services, it stands.
    policy=/usr/sbin/policy-rc.d
    made=
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod 755 "$policy"
        made=yes
    fi
    log=$(mktemp)
    trap 'rm -f "$log"; [ -z "$made" ] || as_root rm -f "$policy"' EXIT
    install() {
        # shellcheck disable=SC2086  # a list of package names
        as_root apt-get install -y -qq --no-install-recommends $missing >"$log" 2>&1
    }
    # The package lists are fetched only when those at hand do not do.
    install || { as_root apt-get update -qq && install; } || {
        cat "$log" >&2
        die "apt-get could not install:$missing"
    }
fi

python=$(find_python) || die "no Python of 3.11 or newer with venv; set PYTHON=/path/to/python3.11"

# What .venv is made from: the locks, what the package says of itself, and which Python.
stamp=$({ cat requirements.txt requirements-dev.txt pyproject.toml lark_*/pyproject.toml; "$python" -V; pwd; } | sha256sum | cut -d' ' -f1)
if [ "$(cat .venv/.lark-stamp 2>/dev/null)" = "$stamp" ] && [ -x .venv/bin/python ]; then
    exit 0
fi

say "making .venv with $("$python" -V)"
"$python" -m venv --clear .venv
log=$(mktemp)
trap 'rm -f "$log"' EXIT
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }; }
pip install --require-hashes -r requirements-dev.txt
pip install --no-deps --no-build-isolation --editable ./lark_common --editable ./lark_worker --editable .
printf '%s\n' "$stamp" >.venv/.lark-stamp
say "done"
