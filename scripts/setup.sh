#!/bin/sh
# Set up everything that `make test` and `make demo` need, on Debian 12 or newer (and its derivatives):
# Debian packages that are missing, a Python of 3.11 or newer, .venv with the locked dependencies, the project itself.
# May be run again at any time: what is there already is left alone, and an unchanged set-up takes no time.
set -eu
cd "$(dirname "$0")/.."

name=setup
# shellcheck source=scripts/debian_packages.sh
. scripts/debian_packages.sh

has_postgres() { has initdb || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; }

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
need systemd-container systemd-nspawn
need shellcheck shellcheck
need man-db man
need munge munged munge unmunge
need bind9 named
need bind9-utils tsig-keygen
need gcc gcc
need make make
need openmpi-bin mpiexec.openmpi
need libopenmpi-dev mpicc.openmpi
need mpich mpiexec.mpich
need libmpich-dev mpicc.mpich
need prometheus promtool
need dnf dnf
need iperf3 iperf3
need rsync rsync
need nginx-light nginx
need patchelf patchelf
need zsh zsh
need fish fish
need haproxy haproxy
has_postgres || missing="$missing postgresql"
{ has patroni && /usr/bin/python3 -c 'import pysyncobj' 2>/dev/null; } || missing="$missing patroni python3-pysyncobj"
# With what it needs to start containers in a network: these are recommended alone.
has podman || missing="$missing podman conmon crun netavark aardvark-dns uidmap"
# netavark of Debian 12 makes containers' networks by it, and fails with "No such file or directory" without.
need iptables iptables

find_python() {
    for python in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
        [ -n "$python" ] && has "$python" &&
            "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 &&
            { command -v "$python"; return; }
    done
    return 1
}
find_python >/dev/null || missing="$missing python3 python3-venv"

install_missing

python=$(find_python) || die "no Python of 3.11 or newer with venv; set PYTHON=/path/to/python3.11"

# What .venv is made from: the locks, the packages' descriptions, and which Python.
stamp=$({ cat requirements.txt requirements-dev.txt pyproject.toml lark_*/pyproject.toml; "$python" -V; pwd; } | sha256sum | cut -d' ' -f1)
if [ "$(cat .venv/.lark-stamp 2>/dev/null)" = "$stamp" ] && [ -x .venv/bin/python ]; then
    exit 0
fi

say "making .venv with $("$python" -V)"
# Through a link, --clear would empty another checkout's.
[ ! -L .venv ] || rm .venv
"$python" -m venv --clear .venv
log=$(mktemp)
trap 'rm -f "$log"' EXIT
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }; }
pip install --require-hashes -r requirements-dev.txt
pip install --no-deps --no-build-isolation --editable ./lark_common --editable ./lark_worker --editable ./lark_mpi --editable .
printf '%s\n' "$stamp" >.venv/.lark-stamp
say "done"
