"""HTCondor's prepare hook and its job wrapper do in this pool what the worker's part of the project relies on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab import submit
from lab.boot import Lab

CONFIG = """\
STARTER_JOB_HOOK_KEYWORD = TRIAL
TRIAL_HOOK_PREPARE_JOB = /usr/local/libexec/trial-prepare
USER_JOB_WRAPPER = /usr/local/libexec/trial-wrapper
"""
# The job's ad is on standard input, in old syntax; what is printed becomes part of it.
PREPARE = """\
#!/bin/sh
ad=$(cat)
if echo "$ad" | grep -qi '^TrialHold = true'; then
    echo 'HookStatusCode = 7'
    echo 'HookStatusMessage = "the trial holds it"'
    exit 0
fi
sudo -n /usr/local/sbin/trial-network make || exit 1
"""
WRAPPER = """\
#!/bin/sh
exec sudo -n -E /usr/local/sbin/trial-network enter "$@"
"""
# One namespace a user is enough for a trial.
NETWORK = """\
#!/bin/sh
set -e
name=trial-$SUDO_UID
case $1 in
make) ip netns add "$name" && ip -n "$name" link add only0 type bridge ;;
enter)
    shift
    exec nsenter --net="/run/netns/$name" setpriv --reuid="$SUDO_UID" --regid="$SUDO_GID" --init-groups -- "$@" ;;
esac
"""
SUDOERS = "ALL ALL=(root) NOPASSWD:SETENV: /usr/local/sbin/trial-network\n"
FILES = {
    "/etc/condor/config.d/90-trial.conf": (CONFIG, 0o644),
    "/usr/local/libexec/trial-prepare": (PREPARE, 0o755),
    "/usr/local/libexec/trial-wrapper": (WRAPPER, 0o755),
    "/usr/local/sbin/trial-network": (NETWORK, 0o755),
    "/etc/sudoers.d/trial": (SUDOERS, 0o440),
}
ON_WORKER1 = {"requirements": 'Machine == "worker1.lab.test"'}


@pytest.fixture
def hooks(lab: Lab) -> Iterator[Lab]:
    for path, (text, mode) in FILES.items():
        lab.write("worker1", path, text, mode=mode)
    lab.on("worker1", "condor_reconfig")
    yield lab
    lab.on("worker1", "rm", "-f", *FILES)
    lab.on("worker1", "ip", "-all", "netns", "del")
    lab.on("worker1", "condor_reconfig")


def test_a_job_runs_in_the_namespace_that_its_hook_had_made(hooks: Lab) -> None:
    script = 'ip -o link | cut -d: -f2; id -un; test -w "$_CONDOR_SCRATCH_DIR" && echo writable'
    jobs = submit.submit(hooks, "carol", script, ON_WORKER1)
    submit.wait(hooks, jobs)
    assert submit.output(hooks, jobs).split() == ["lo", "only0", "carol", "writable"]
    assert submit.attribute(hooks, jobs, "JobStatus") == "4"


def test_a_hook_can_hold_its_job_with_a_reason_that_the_user_reads(hooks: Lab) -> None:
    jobs = submit.submit(hooks, "bob", "true", {**ON_WORKER1, "+TrialHold": "true"})
    held = f'until [ "$(condor_q {jobs.cluster} -af JobStatus)" = 5 ]; do sleep 0.5; done'
    hooks.on("central", "sh", "-c", held, user="bob", timeout=60)
    assert "the trial holds it" in submit.attribute(hooks, jobs, "HoldReason")
    hooks.on("central", "condor_rm", str(jobs.cluster), user="bob")
