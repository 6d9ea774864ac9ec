#!/bin/sh
# Build the packages of controller, worker and access point: packages.sh [debian12|debian13|el9|el10]... (all of them)
# into dist/DISTRIBUTION, on Debian 12 or newer with .venv (scripts/setup.sh). Debian packages that are missing are
# installed. From the network come Python packages alone, by uv and pip, in the versions and with the hashes of the locks.
# REVISION (1) is the packages' own: higher for a new build of the same version.
set -eu
cd "$(dirname "$0")/.."
umask 022

name=packages
# shellcheck source=scripts/debian_packages.sh
. scripts/debian_packages.sh

need dpkg-dev dpkg-buildpackage
need debhelper dh_builddeb
need lintian lintian
need rpm rpmbuild
need sudo visudo
install_missing
[ -x .venv/bin/uv ] || die "no .venv/bin/uv; run scripts/setup.sh first"

version=$(.venv/bin/python -c 'import lark_controller; print(lark_controller.__version__)')
revision=${REVISION:-1}
machine=$(uname -m)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
scripts/wheels.sh "$work/wheels"
scripts/manpages.sh "$work/manuals"
export LARK_MANUALS="$work/manuals"

# A sudoers file with a mistake would take sudo away from others as well.
visudo -cqf etc/sudoers.d/lark || die "etc/sudoers.d/lark has a mistake"

# sites NAME PYTHON GLIBC: the Python packages for one distribution
sites() {
    for role in controller worker; do
        packaging/site.sh "$role" "$2" "$machine-manylinux_$3" "$work/wheels" "$work/sites/$1/$role"
    done
}

copy() { # copy DIRECTORY: what packages are made from
    mkdir -p "$1"
    cp -R etc scripts packaging LICENSE CHANGELOG.md "$1"
}

debian() { # debian NAME PYTHON GLIBC
    say "$1: Python $2"
    sites "$@"
    source=$work/$1/lark-$version
    copy "$source"
    cp -R packaging/debian "$source/debian"
    cat >"$source/debian/changelog" <<END
lark ($version-$revision~$1) unstable; urgency=medium

  * What changed is in changelog.gz.

 -- Lark developers <developers@lark.example>  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
END
    (cd "$source" && LARK_PYTHON=$2 LARK_SITES=$work/sites/$1 dpkg-buildpackage --build=binary --no-sign) \
        >"$work/log" 2>&1 || { cat "$work/log" >&2; die "$1: dpkg-buildpackage failed"; }
    lintian --allow-root --fail-on error "$work/$1"/*.deb
    # What an earlier build has left would be installed beside it.
    rm -rf "dist/$1"
    mkdir -p "dist/$1"
    cp "$work/$1"/*.deb "dist/$1/"
}

el() { # el NAME PYTHON GLIBC
    say "$1: Python $2"
    sites "$@"
    copy "$work/$1"
    rpmbuild -bb --quiet --define "_topdir $work/rpm-$1" --define "lark_version $version" \
        --define "lark_release $revision.$1" --define "lark_python $2" --define "lark_source $work/$1" \
        --define "lark_sites $work/sites/$1" --define "use_source_date_epoch_as_buildtime 1" \
        --define "clamp_mtime_to_source_date_epoch 1" packaging/lark.spec \
        >"$work/log" 2>&1 || { cat "$work/log" >&2; die "$1: rpmbuild failed"; }
    # What an earlier build has left would be installed beside it.
    rm -rf "dist/$1"
    mkdir -p "dist/$1"
    cp "$work/rpm-$1"/RPMS/*/*.rpm "dist/$1/"
}

[ $# -gt 0 ] || set -- debian12 debian13 el9 el10
for each in "$@"; do
    case $each in
        debian12) debian "$each" 3.11 2_36 ;;
        # The newest that uv has; Debian 13 has 2.41.
        debian13) debian "$each" 3.13 2_40 ;;
        # Enterprise Linux 9 has it as a package beside its own 3.9.
        el9) el "$each" 3.12 2_34 ;;
        el10) el "$each" 3.12 2_39 ;;
        *) die "no such distribution: $each (debian12, debian13, el9, el10)" ;;
    esac
    rm -rf "$work/sites/$each"
    say "$each: $(cd "dist/$each" && echo ./*)"
done
