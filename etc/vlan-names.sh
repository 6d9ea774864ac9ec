#!/bin/sh
# An example of LARK_WORKER_SCRIPT: turns the VLAN's name in the machine ad into its number.
# Standard input: the job ad, a line ------, the machine ad, whose VLAN has been evaluated for this job.
case $(sed -n '/^------$/,$ s/^VLAN = //p') in
    '"physics"') echo 'VLAN = 41' ;;
    '"chemistry"') echo 'VLAN = 42' ;;
    '' | [0-9]*) ;; # no VLAN, or a number already
    *)
        echo 'this worker has no VLAN of that name' >&2
        exit 1
        ;;
esac
