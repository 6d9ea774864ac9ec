"""The services of each machine of the lab, by its roles. Runs as root inside the lab. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from lab.inside import condor, lark, pki
from lab.inside.machines import DIRECTORY, no_detection, on, script, start, wait_for, whole_text, write
from lab.inside.topology import BY_NAME, DOMAIN, LEASES, OPENFLOW_PORT, OVSDB_PORT, Machine, hosts_file
from lab.inside.wan_server import FAST_MARK

OVS_TIMEOUT = 60
CONTROLLER = f"tcp:{BY_NAME['controller'].address}:{OPENFLOW_PORT}"
TOKEN = "/etc/condor/tokens.d/pool"


@dataclass(frozen=True, slots=True)
class Options:
    """With ``userspace`` the kernel is taken to have neither Open vSwitch nor traffic control.

    Then Open vSwitch forwards by itself, and the WAN is as near as the LAN. Without ``zones`` the kernel's connection
    tracking has none, and the policy has no one-way connectivity.
    """

    userspace: bool = False
    zones: bool = True


def base(machine: Machine, options: Options) -> None:
    """Names, resolver, and for the gateways the delay: what every machine has before its roles."""
    write(machine.name, "/etc/hosts", hosts_file())
    write(machine.name, "/etc/resolv.conf", f"search {DOMAIN}\nnameserver {BY_NAME['dhcp'].address}\n")
    delays = [nic for nic in machine.nics if nic.delay_ms and not options.userspace]
    # Room for more than a second of a gigabit: the delay must not drop what a queue would have let through.
    lines = [f"tc qdisc add dev {nic.name} root netem delay {nic.delay_ms}ms limit 100000" for nic in delays]
    if options.userspace:
        # The userspace datapath passes on frames whose checksum the sender left to its interface.
        lines += [f"ethtool -K {nic.name} tx off >/dev/null" for nic in machine.nics if nic.segment]
    # As systemd has it: everybody may ping without privilege, and jobs as their worker.
    lines.append("echo '0 2147483647' > /proc/sys/net/ipv4/ping_group_range")
    script(machine.name, lines)


def routes(machine: Machine) -> None:
    """Routes, once the interfaces that they go through are up."""
    lines = [f"route add {route}" for route in machine.routes]
    on(machine.name, "ip", "-batch", "-", stdin="\n".join(lines))


def openvswitch(machine: Machine, options: Options) -> None:
    """Start Open vSwitch and make the machine's bridge, in fail mode secure, with the flows that need no controller.

    The bridge tries to reach the controller every second at the latest.

    An edge's own traffic is open, and its jobs' ports pass nothing. The core switches like a plain one.
    """
    bridge = machine.bridge
    assert bridge is not None
    script(
        machine.name,
        [f"/usr/share/openvswitch/scripts/ovs-ctl start --system-id={machine.name} --no-mlockall >/dev/null"],
        OVS_TIMEOUT,
    )
    pki.install(machine.name)
    mac = "02:00:00:00:00:" + bridge.datapath_id[-2:]
    datapath = "netdev" if options.userspace else "system"
    command = [
        "ovs-vsctl", "--may-exist", "add-br", bridge.name,
        "--", "set", "bridge", bridge.name, f"datapath_type={datapath}", "fail_mode=secure",
        "protocols=OpenFlow13", f"other_config:datapath-id={bridge.datapath_id}",
        "other_config:disable-in-band=true", f"other_config:hwaddr={mac}",
        # Before the flows, not after: Open vSwitch empties the tables of a bridge that gets its first controller.
        "--", "set-controller", bridge.name, CONTROLLER, "--", "set", "controller", bridge.name, "max_backoff=1000",
    ]  # fmt: skip
    command += ["--", "set-ssl", pki.KEY, pki.CERTIFICATE, pki.CA, "--", "set-manager", f"pssl:{OVSDB_PORT}"]
    for number, port in enumerate(bridge.ports, start=1):
        command += ["--", "--may-exist", "add-port", bridge.name, port]
        command += ["--", "set", "interface", port, f"ofport_request={number}"]
    on(machine.name, *command, timeout=OVS_TIMEOUT)
    if "execute" in machine.roles:
        lark.base_flows(machine)
    else:
        on(machine.name, "ovs-ofctl", "-O", "OpenFlow13", "add-flow", bridge.name, "priority=0,actions=NORMAL")
    lines = [f"address add {address} dev {bridge.name}{no_detection(address)}" for address in bridge.addresses]
    on(machine.name, "ip", "-batch", "-", stdin="\n".join([*lines, f"link set {bridge.name} up"]))
    if options.userspace:
        script(machine.name, [f"ethtool -K {bridge.name} tx off >/dev/null"])


def router(machine: Machine) -> None:
    """Forward between the core's port and the way behind it."""
    settings = "net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.rp_filter=0"
    script(machine.name, [f"sysctl -qw {settings}"])


def wan(machine: Machine, options: Options) -> None:
    """Answer on the way by which one is asked; serve HTTP, UDP echo and iperf3.

    What comes in by the fast way is marked; an accepted TCP connection and an answer to a ping keep the mark, and an
    answer by UDP names its interface. Both choose table 100.
    """
    lines = [
        "sysctl -qw net.ipv4.tcp_fwmark_accept=1 net.ipv4.fwmark_reflect=1 net.ipv6.fwmark_reflect=1",
        "sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.fast0.rp_filter=0 net.ipv4.conf.wan0.rp_filter=0",
        *(f"ip {family} rule add fwmark {FAST_MARK} table 100" for family in ("-4", "-6")),
        *(f"ip {family} rule add oif fast0 table 100" for family in ("-4", "-6")),
    ]
    if options.userspace:
        chain = "{ type filter hook prerouting priority mangle; }"
        lines += [
            "nft add table inet lab",
            f"nft 'add chain inet lab ways {chain}'",
            f"nft add rule inet lab ways iifname fast0 meta mark set {FAST_MARK}",
        ]
    else:
        lines += [
            "tc qdisc add dev fast0 ingress",
            f"tc filter add dev fast0 ingress matchall action skbedit mark {FAST_MARK}",
        ]
    script(machine.name, lines)
    start(
        machine.name, "env", "PYTHONPATH=/lark/run/code", "python3", "-m", "lab.inside.wan_server",
        log="/var/log/wan-server.log",
    )  # fmt: skip
    start(machine.name, "iperf3", "--server", log="/var/log/iperf3.log")


def dhcp(machine: Machine) -> None:
    """Serve leases on the jobs' network, and the lab's names by DNS."""
    script(machine.name, ["ip address add 10.64.0.4/16 dev eth0", "mkdir -p /var/lib/misc"])
    start(
        machine.name, "dnsmasq", "--keep-in-foreground", "--no-resolv", "--interface=eth0", f"--domain={DOMAIN}",
        f"--dhcp-range={LEASES[0]},{LEASES[1]},255.255.0.0,1h", "--dhcp-option=option:router,10.64.0.1",
        f"--dhcp-option=option:dns-server,{machine.address}", "--dhcp-authoritative", "--no-ping", "--log-dhcp",
        "--log-facility=/var/log/dnsmasq.log", "--dhcp-leasefile=/var/lib/misc/dnsmasq.leases",
    )  # fmt: skip


def database(machine: Machine) -> None:
    """PostgreSQL on a Unix socket, with the role and the database that the controller uses. Durability is not wanted
    here.
    """
    lines = [
        "install -d -o postgres -g postgres /run/postgresql /var/log/postgresql",
        "install -d -o postgres -g postgres -m 700 /var/lib/lark-db",
        "version=$(ls /usr/lib/postgresql)",
        "bin=/usr/lib/postgresql/$version/bin",
        'as_postgres() { setpriv --reuid postgres --regid postgres --init-groups "$@"; }',
        # Left by a loss of power; its process id may be another's by now.
        "rm -f /var/lib/lark-db/postmaster.pid",
        "[ -f /var/lib/lark-db/PG_VERSION ] ||"
        " as_postgres $bin/initdb -D /var/lib/lark-db -A trust --no-sync -U postgres",
        "as_postgres $bin/pg_ctl -D /var/lib/lark-db -w -s"
        " -l /var/log/postgresql/lab.log -o '-c fsync=off -c listen_addresses= -k /run/postgresql' start",
        "psql -qU postgres -h /run/postgresql -tc \"select 1 from pg_roles where rolname='lark'\" | grep -q 1 ||"
        " psql -qU postgres -h /run/postgresql -c 'create role lark login' -c 'create database lark owner lark'",
    ]
    script(machine.name, lines, timeout=120)


def htcondor(machine: Machine) -> None:
    """Start condor_master. The central machine makes the pool's key and a token, which the others get."""
    write(machine.name, "/etc/condor/config.d/10-lab.conf", condor.config(machine))
    if "execute" in machine.roles:
        write(machine.name, "/etc/condor/config.d/60-site.conf", condor.SITE)
    lines = [
        "install -d -o condor -g condor /run/condor /run/lock/condor /var/log/condor /var/lib/condor/spool",
        "install -d -o condor -g condor -m 755 /var/lib/condor/execute",
        "install -d -m 700 /etc/condor/passwords.d /etc/condor/tokens.d",
    ]
    if "central" in machine.roles:
        shipped = f"{lark.SOURCE}/etc/condor"
        lines += [
            f"install -D -m 644 -t /etc/condor/config.d {shipped}/51-lark-access-point.conf",
            f"install -D -m 644 -t /etc/condor {shipped}/lark-submit-help.txt {shipped}/*.cpf",
            "[ -f /etc/condor/passwords.d/POOL ] ||"
            " condor_store_cred add -c -p $(head -c 24 /dev/urandom | base64) >/dev/null",
            # The schedd reads no token that others may read: as a dedicated scheduler it would keep its claims.
            f"(umask 077 && condor_token_create -identity condor@{DOMAIN} > {TOKEN})",
        ]
    script(machine.name, lines)
    if "central" not in machine.roles:
        token = DIRECTORY / "central/upper" / TOKEN.lstrip("/")
        wait_for("the pool's token", token)
        write(machine.name, TOKEN, whole_text(token), mode=0o600)
    start(machine.name, "condor_master", "-f", log="/var/log/condor/master-output.log")


def boot(machine: Machine, options: Options) -> None:
    """Start the services of ``machine``, which is switched on."""
    base(machine, options)
    if "openvswitch" in machine.roles:
        openvswitch(machine, options)
    routes(machine)
    begins = (("router", router), ("dhcp", dhcp), ("database", database))
    for role, begin in begins:
        if role in machine.roles:
            begin(machine)
    if "wan" in machine.roles:
        wan(machine, options)
    if "controller" in machine.roles:
        lark.controller(machine, connectivity=options.zones, queues=not options.userspace)
    if "execute" in machine.roles:
        lark.worker(machine)
    elif "openvswitch" in machine.roles and not options.userspace:
        lark.leaves(machine)
    if condor.is_in_pool(machine):
        htcondor(machine)
