"""HTCondor's configuration on each machine of the lab, as text."""

from __future__ import annotations

from lab.inside.topology import DOMAIN, UPLINK, Machine

# Mb/s of every worker.
BANDWIDTH = 1000
DAEMONS = {"central": "MASTER, COLLECTOR, NEGOTIATOR, SCHEDD", "execute": "MASTER, STARTD"}

_COMMON = """\
CONDOR_HOST = {host}
DAEMON_LIST = {daemons}
NETWORK_HOSTNAME = {name}
NETWORK_INTERFACE = {address}
ENABLE_IPV6 = False
UID_DOMAIN = {domain}
TRUST_UID_DOMAIN = True
# No file system is shared: jobs' files are transferred.
FILESYSTEM_DOMAIN = {name}

# Debian's own file has security:recommended: everything but READ is authenticated, between machines by tokens.
TRUST_DOMAIN = {domain}

# Matches within seconds.
NEGOTIATOR_INTERVAL = 2
NEGOTIATOR_CYCLE_DELAY = 1
NEGOTIATOR_MIN_INTERVAL = 1
SCHEDD_INTERVAL = 2
UPDATE_INTERVAL = 5
MASTER_UPDATE_INTERVAL = 5
JOB_START_DELAY = 0
"""
_EXECUTE = """
START = True
SUSPEND = False
PREEMPT = False
KILL = False
# A starter whose prepare hook has sent the job back to the queue stays until it is killed.
KILLING_TIMEOUT = 5
# More than one machine has: fifty jobs at once are what the tests ask for.
NUM_CPUS = 40
MEMORY = 8000
SLOT_TYPE_1 = 100%
SLOT_TYPE_1_PARTITIONABLE = True
NUM_SLOTS_TYPE_1 = 1
RunBenchmarks = False
STARTD_CRON_JOBLIST =
"""
# Read after 50-lark.conf: what this site has otherwise. Cables of the lab claim 10 Gb/s, which is more than counts.
SITE = f"""\
MACHINE_RESOURCE_INVENTORY_Bandwidth = /usr/local/libexec/lark/lark-bandwidth {UPLINK} {BANDWIDTH}
"""
_CENTRAL = """
GROUP_NAMES = group_cms, group_cms.prod, group_cms.analysis, group_atlas
GROUP_ACCEPT_SURPLUS = True
GROUP_AUTOREGROUP = False
# A machine that sends nothing is forgotten within a minute.
CLASSAD_LIFETIME = 40
NEGOTIATOR_UPDATE_INTERVAL = 10
"""


def config(machine: Machine) -> str:
    """``/etc/condor/config.d/10-lab.conf`` of ``machine``, which has the role central or execute."""
    role = next(role for role in machine.roles if role in DAEMONS)
    host, name = f"central.{DOMAIN}", f"{machine.name}.{DOMAIN}"
    text = _COMMON.format(host=host, daemons=DAEMONS[role], name=name, address=machine.address, domain=DOMAIN)
    return text + (_EXECUTE if role == "execute" else _CENTRAL)


def is_in_pool(machine: Machine) -> bool:
    """True if HTCondor runs on ``machine``."""
    return any(role in DAEMONS for role in machine.roles)
