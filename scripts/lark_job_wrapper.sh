#!/bin/sh
# HTCondor's USER_JOB_WRAPPER: starts the job inside the network namespace that Lark made for it.
#
#   USER_JOB_WRAPPER = /usr/local/libexec/lark/lark_job_wrapper.sh
#
# Runs as the job's user and holds no authority: lark-enter asks the worker service whose job this is. sudo starts that
# with an environment of its own, so the job's goes by a file that only its user can read. Where the way in fails, the
# reason stands on standard error and in $_CONDOR_WRAPPER_ERROR_FILE, and the job ends with status 122 (1 where sudo
# refuses).
set -u
PATH=${PATH:-/usr/bin:/bin}
enter=/usr/local/libexec/lark/lark-enter
note=${_CONDOR_WRAPPER_ERROR_FILE:-/dev/null}

fail() {
    printf 'Lark: %s\n' "$1" | tee "$note" >&2
    exit 122
}

mask=$(umask)
umask 077
file=$(mktemp "${_CONDOR_SCRATCH_DIR:-${TMPDIR:-/tmp}}/.lark-environment.XXXXXX") ||
    fail "no file can be made for the job's environment"
cat "/proc/$$/environ" >"$file" || fail "the job's environment cannot be kept"
umask "$mask"
# Taken away by lark-enter. What stays is the reason where sudo itself refuses.
printf 'Lark: sudo does not start %s\n' "$enter" >"$note"
exec /usr/bin/sudo -n "$enter" "$file" "$@"
