"""The papers' results, as data, each with its place. Values that they show only as a curve are left out.

*Lark*: Z. Zhang, B. Bockelman, D. W. Carder, T. Tannenbaum, "Lark: Bringing Network Awareness to High Throughput
Computing". *QoS framework*: S. Senapathi, D. K. Panda, D. Stredney, H.-W. Shen, "A QoS Framework for Clusters to
Support Applications with Resource Adaptivity and Predictable Performance". *HTCondor data movement*: I. Sfiligoi,
F. Würthwein, T. DeFanti, J. Graham, "HTCondor data movement at 100 Gbps". *SuperFacility*: R. S. Canon, T. Declerck,
B. Draney, J. Lee, D. Paul, D. Skinner, "Enabling a SuperFacility with Software Defined Networking".
"""

from __future__ import annotations

from typing import Final

# Lark, section VII.A.1, Fig. 8: the requests of jobs of users A, B and C, Mb/s, on a worker's link of 1,000.
HOST_RATES: Final = {"A": 100.0, "B": 300.0, "C": 600.0}
HOST_LINK: Final = 1000.0

# Lark, section VII.A.2, Fig. 10: the queues of CMS and of other jobs on a WAN of 1,000, Mb/s; two jobs in each.
WAN_QUEUES: Final = {"cms": 250.0, "other": 100.0}
WAN_LINK: Final = 1000.0

# Lark, section VII.C, Fig. 12: the allocations of the high-priority job and of all others together, Mb/s.
PRIORITY_RATES: Final = (900.0, 100.0)
# Lark, Table III: how many times faster the high-priority job is with management, by number of other jobs.
SPEED_UP: Final = {
    1: 1.8, 2: 2.7, 3: 3.6, 4: 5.7, 5: 6.5, 6: 7.6, 7: 7.9, 8: 10.6, 9: 11.2, 10: 12.9, 11: 13.5, 12: 17.6, 13: 22.1,
    14: 22.7, 15: 25.2,
}  # fmt: skip

# Lark, section VII.B.3: to forward it, look the job up and install a rule, ms.
FIRST_PACKET_MS: Final = 50.0
# Lark, section VII.B.1: what a job's network adds to its run, s: with DHCP, with the lease cached.
OVERHEAD_S: Final = (1.0, 0.4)

# QoS framework, section VI.A: what a link carries in both directions together, MB/s.
LINK_MBYTES: Final = 210.0
# QoS framework, section VI.E, Fig. 13a: Integer Sort on four nodes, MB/s a flow -> seconds, alone and in a pair.
SORT_SECONDS_ALONE: Final = {5.0: 0.1404, 8.0: 0.0925}
SORT_SECONDS_PAIR: Final = {5.0: 0.1404, 8.0: 0.09175}
# QoS framework, section VI.C: what is sufficient for its extraction of isosurfaces on four nodes, MB/s a flow.
ISOSURFACE_MBYTES: Final = 15.0

# HTCondor data movement, sections II and III: jobs of one submission, bytes of each input, slots, the link in Mb/s.
TRANSFER_JOBS: Final = 10_000
TRANSFER_BYTES: Final = 2e9
TRANSFER_SLOTS: Final = 200
TRANSFER_LINK: Final = 100_000.0
# Minutes for all jobs: without HTCondor's transfer queue and with its defaults (section III); over 58 ms (section IV).
TRANSFER_MINUTES: Final = {"no queue": 32.0, "queue": 64.0, "wan": 49.0}
# Minutes for which its median input was on its way.
INPUT_MINUTES: Final = {"no queue": 2.6, "wan": 3.3}


# SuperFacility, Tables II (iperf), III (GridFTP, from LBNL) and IV (a web server at CERN, with larger buffers): a host
# that is connected directly, and compute nodes with external addresses.
DIRECT: Final = {"Table II": (34.7, "Gb/s"), "Table III": (750.0, "MB/s"), "Table IV": (20.0, "MB/s")}
MAPPED: Final = {"Table II": (25.8, "Gb/s"), "Table III": (550.0, "MB/s"), "Table IV": (25.0, "MB/s")}
# The same tables' compute nodes by the way before (RSIP), and what else they have, in words.
RSIP: Final = {"Table II": 4.5, "Table III": 540.0, "Table IV": 0.2}
BESIDES: Final = {
    "Table II": "",
    "Table III": " From CERN it has 19.5 MB/s directly, 13 through its routers and 13 by RSIP.",
    "Table IV": " That is with larger TCP buffers on a test system; by default it is 1 MB/s.",
}


def flow_limit(nodes: int, link: float = LINK_MBYTES) -> float:
    """The most that each flow of an all-to-all exchange can reserve, where both directions share a link.

    A node has ``nodes - 1`` flows out and as many in (QoS framework, section VI.C). The unit is that of ``link``.
    """
    return link / (2 * nodes - 2)
