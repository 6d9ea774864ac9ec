#!/bin/sh
# Lay out the files of one package: stage.sh ROLE PYTHON ROOT [SITE]
#
#   ROLE    controller, worker or access-point
#   PYTHON  the distribution's Python that runs the programs, for example 3.11
#   ROOT    the directory that stands for / (it is added to)
#   SITE    a directory of Python packages for that Python, made by site.sh; without it the tree has our own files alone
#
# LARK_MANUALS, in the environment, is the directory of manual pages and completions (scripts/manpages.sh).
#
# Both kinds of packages have this one layout. Files of etc/ and scripts/ name the places of an installation by hand, and
# get those of a package here. What is in /etc is links into /usr/share, so that it goes when the package is removed:
# dpkg keeps configuration files until a package is purged, and a removed worker would go on calling hooks that are gone.
set -eu
role=$1
python=$2
root=$3
site=${4:-}
cd "$(dirname "$0")/.."
umask 022

place() { # place MODE SOURCE TARGET
    mkdir -p "$root${3%/*}"
    sed -e 's|/usr/local/libexec/|/usr/libexec/|g' -e 's|/usr/local/sbin/|/usr/sbin/|g' -e 's|/opt/lark/bin/|/usr/bin/|g' \
        -e 's|^ConfigurationDirectoryMode=0750$|ConfigurationDirectoryMode=0755|' "$2" >"$root$3"
    chmod "$1" "$root$3"
}
link() { # link TARGET NAME
    mkdir -p "$root${2%/*}"
    ln -s "$1" "$root$2"
}

manual() { # manual NAME SECTION
    mkdir -p "$root/usr/share/man/man$2"
    cp "${LARK_MANUALS:?}/$1.$2" "$root/usr/share/man/man$2/$1.$2"
    chmod 644 "$root/usr/share/man/man$2/$1.$2"
}

completions() { # completions NAME
    place 644 "${LARK_MANUALS:?}/$1.bash" "/usr/share/bash-completion/completions/$1"
    place 644 "$LARK_MANUALS/$1.zsh" "/usr/share/zsh/site-functions/_$1"
    # Debian's zsh looks here.
    link "../site-functions/_$1" "/usr/share/zsh/vendor-completions/_$1"
    place 644 "$LARK_MANUALS/$1.fish" "/usr/share/fish/vendor_completions.d/$1.fish"
}

# A virtual environment in /usr/lib, of the distribution's Python: other Python packages of the machine stay out of it.
program() { # program PACKAGE NAME MODULE
    lib=/usr/lib/$1
    mkdir -p "$root$lib/bin" "$root$lib/lib/python$python"
    [ -z "$site" ] || cp -R "$site" "$root$lib/lib/python$python/site-packages"
    printf 'home = /usr/bin\ninclude-system-site-packages = false\nversion = %s\n' "$python" >"$root$lib/pyvenv.cfg"
    link "/usr/bin/python$python" "$lib/bin/python"
    cat >"$root$lib/bin/$2" <<END
#!$lib/bin/python -I
import sys

from $3 import main

if __name__ == "__main__":
    sys.exit(main())
END
    chmod 755 "$root$lib/bin/$2"
    link "../lib/$1/bin/$2" "/usr/bin/$2"
}

case $role in
    controller)
        share=/usr/share/lark-controller
        program lark-controller lark lark_controller.cli.main
        manual lark 1
        completions lark
        place 644 etc/systemd/lark-controller.service /usr/lib/systemd/system/lark-controller.service
        place 644 packaging/files/controller.sysusers /usr/lib/sysusers.d/lark-controller.conf
        place 644 packaging/files/controller.tmpfiles /usr/lib/tmpfiles.d/lark-controller.conf
        for file in lark.env policy.yaml policy.schema.json scitags.json prometheus/lark.rules.yml prometheus/prometheus.yml grafana/lark.json haproxy/lark.cfg; do
            place 644 "etc/$file" "$share/$file"
        done
        ;;
    worker)
        share=/usr/share/lark-worker
        program lark-worker lark-worker lark_worker.cli
        manual lark-worker 8
        manual lark-base-flows 8
        completions lark-worker
        for unit in lark-worker lark-base-flows lark-leaves lark-gateway; do
            place 644 "etc/systemd/$unit.service" "/usr/lib/systemd/system/$unit.service"
        done
        place 755 scripts/lark-base-flows /usr/sbin/lark-base-flows
        for file in starter_hook.sh lark_job_wrapper.sh lark-enter lark-bandwidth; do
            place 755 "scripts/$file" "/usr/libexec/lark/$file"
        done
        link starter_hook.sh /usr/libexec/lark/lark-start
        place 644 packaging/files/worker.tmpfiles /usr/lib/tmpfiles.d/lark-worker.conf
        place 644 packaging/files/hook.conf "$share/hook.conf"
        place 644 etc/worker.env "$share/worker.env"
        place 755 etc/vlan-names.sh "$share/vlan-names.sh"
        place 440 etc/sudoers.d/lark "$share/sudoers"
        link "$share/sudoers" /etc/sudoers.d/lark
        place 644 etc/condor/50-lark.conf "$share/50-lark.conf"
        link "$share/50-lark.conf" /etc/condor/config.d/50-lark.conf
        ;;
    access-point)
        share=/usr/share/lark-access-point
        place 644 etc/condor/51-lark-access-point.conf "$share/51-lark-access-point.conf"
        link "$share/51-lark-access-point.conf" /etc/condor/config.d/51-lark-access-point.conf
        for file in lark-submit-help.txt lark-jobs.cpf lark-slots.cpf; do
            place 644 "etc/condor/$file" "$share/$file"
            link "$share/$file" "/etc/condor/$file"
        done
        place 755 scripts/lark-transfer-queue /usr/libexec/lark-access-point/lark-transfer-queue
        ;;
    *)
        echo "stage.sh: no such role: $role" >&2
        exit 2
        ;;
esac
