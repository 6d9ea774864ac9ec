#!/bin/sh
# HTCondor's USER_JOB_WRAPPER: starts the job inside the network namespace that Lark made for it.
#
#   USER_JOB_WRAPPER = /usr/local/libexec/lark/lark_job_wrapper.sh
#
# Runs as the job's user and holds no authority: lark-enter asks the worker service whose job this is. sudo starts that
# with an environment of its own, so the job's goes by a file that only its user can read. Where the way in fails, the
# reason stands on standard error and in $_CONDOR_WRAPPER_ERROR_FILE, and HTCondor sends the job back to Idle with it.
set -u
# Not the job's, whose mktemp would run outside of the namespace; its environment is kept as the kernel has it.
PATH=/usr/bin:/bin
enter=/usr/local/libexec/lark/lark-enter
note=${_CONDOR_WRAPPER_ERROR_FILE:-/dev/null}

# HTCondor's starter looks for the note as HTCondor's own user, who does not pass a scratch directory of mode 0700: without
# this it would take the job for one that has ended. lark-enter closes the directory again before the job begins.
say() {
    (umask 022 && printf 'Lark: %s\n' "$1" >"$note")
    [ "$note" = /dev/null ] || chmod go+x "${note%/*}"
}

fail() {
    say "$1"
    printf 'Lark: %s\n' "$1" >&2
    exit 122
}

mask=$(umask)
umask 077
file=$(mktemp "${_CONDOR_SCRATCH_DIR:-${TMPDIR:-/tmp}}/.lark-environment.XXXXXX") ||
    fail "no file can be made for the job's environment"
cat "/proc/$$/environ" >"$file" || fail "the job's environment cannot be kept"
umask "$mask"
# Taken away by lark-enter. What stays is the reason where sudo itself refuses.
say "sudo does not start $enter"
exec /usr/bin/sudo -n "$enter" "$file" "$@"
