# To be read by scripts that install Debian packages (`name` is the script's own, in its messages):
#   need PACKAGE PROGRAM...   notes the package in `missing`, unless all its programs are there
#   install_missing           installs what is in `missing`, as root or by sudo; no server is started
# shellcheck shell=sh disable=SC2154  # name: the script's that reads this

say() { printf '%s: %s\n' "$name" "$*"; }
die() { printf '%s: %s\n' "$name" "$*" >&2; exit 1; }

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

missing=
need() {
    package=$1
    shift
    for program in "$@"; do
        has "$program" || { missing="$missing $package"; return; }
    done
}

apt_install() {
    # shellcheck disable=SC2086  # a list of package names
    as_root apt-get install -y -qq --no-install-recommends $missing >"$log" 2>&1
}

install_missing() {
    [ -n "$missing" ] || return 0
    has apt-get || die "not installed, and there is no apt-get to install them:$missing"
    say "installing Debian packages:$missing"
    # Servers that come with the packages are not wanted. Where the machine already has a policy on starting services, it
    # stands.
    policy=/usr/sbin/policy-rc.d
    made=
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod 755 "$policy"
        made=yes
    fi
    log=$(mktemp)
    trap 'rm -f "$log"; [ -z "$made" ] || as_root rm -f "$policy"' EXIT
    # The package lists are fetched only when those at hand do not do.
    apt_install || { as_root apt-get update -qq && apt_install; } || {
        cat "$log" >&2
        die "apt-get could not install:$missing"
    }
    rm -f "$log"
    [ -z "$made" ] || as_root rm -f "$policy"
    trap - EXIT
}
