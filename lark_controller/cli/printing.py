"""The output of the ``lark`` command: JSON, or tables and sentences for a terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lark_common.log import printable_json
from lark_common.runs import names
from lark_controller.cli import decision_words

Answer = Mapping[str, Any]

_COLOURS: Final = {
    "enforced": "32",
    "forwarded": "32",
    "yes": "32",
    "installed": "32",
    "pending": "33",
    "registering": "33",
    "quarantined": "31",
    "blocked": "31",
    "unknown": "33",
    "foreign": "33",
    "refused": "31",
    "dropped": "31",
    "no": "31",
    "missing": "31",
}
# Lines of a comparison by their first character.
_SIGNS: Final = {"+": "32", "-": "31", "@": "36"}


def json_out(value: object) -> None:
    """Print a value as JSON."""
    # JSON lets some control characters stand as they are, which a terminal obeys.
    print("\n".join(map(printable_json, json.dumps(value, indent=2, ensure_ascii=False).split("\n"))))


def mistake(found: Answer, source: str) -> str:
    """A mistake in a policy, in the form that compilers use."""
    accepted = f"; accepted: {found['accepted']}" if found["accepted"] else ""
    return f"{source}:{found['line']}:{found['column']}: {found['key'] or 'file'}: {found['problem']}{accepted}"


def jobs(found: Sequence[Answer]) -> None:
    """A table of jobs."""
    called = _names(found)
    rows = [
        (called[job["id"]], _job_state(job), job["owner"], job["group"], job["host"], _addresses(job), job["reason"])
        for job in found
    ]
    table(("JOB", "STATE", "OWNER", "GROUP", "HOST", "ADDRESSES", "REASON"), rows)


def _job_state(job: Answer) -> str:
    """The state; of a job that has its rules, which let nothing pass, ``blocked``; ``no network`` where there is none
    that rules could be for."""
    if job["state"] == "enforced" and job.get("network_type") == "none":
        return "no network"
    isolated = bool(job.get("isolated"))
    if (decision := job.get("decision")) is not None:
        isolated = decision["blocked"] or not (decision["inbound"] or decision["outbound"])
    return "blocked" if isolated and job["state"] == "enforced" else str(job["state"])


def _names(found: Sequence[Answer]) -> dict[str, str]:
    """The names of jobs in one table, by id."""
    return names((job["id"], _number(job), str(job["global_job_id"])) for job in found)


def _number(job: Answer) -> str:
    return f"{job['cluster']}.{job['proc']}"


def job(found: Answer, down: Sequence[Answer] = ()) -> None:
    """One job, with the policy's decision, the switches' confirmations, and the WAN ports that are ``down`` by which it
    would send."""
    state = _word(_job_state(found)) + (f" ({clean(found['reason'])})" if found["reason"] else "")
    decision = found["decision"]
    pairs = [
        ("job", _number(found)),
        ("id", found["id"]),
        ("state", state),
        ("owner", found["owner"]),
        ("group", found["group"] or "none"),
        ("run", f"{found['global_job_id']} on {found['slot']}"),
        ("addresses", _addresses(found) or "none"),
        ("attached", ", ".join([found["network_type"], *_vlan(found), _place(found)])),
        ("lease until", found["lease_until"]),
        ("policy", decision_words.words(decision, found) + _version_then(found)),
        ("used", _used(found["usage"])),
        *_transferred(found["usage"]),
        *_moved_under(found),
        ("confirmed by", " ".join(decision_words.confirmed(found)) or "no switch"),
    ]
    pairs += [("waits for", decision_words.waited_for(each, found)) for each in found["waiting"]]
    lost = "what it sends to the WAN is dropped, and not counted as dropped"
    pairs += [("WAN", f"{is_down(each, 'its WAN port')}: {lost}") for each in down]
    _pairs(pairs)
    for because in decision["because"]:
        values = ", ".join(f"{name} = {value}" for name, value in because["values"].items())
        met = f"  [{values}]" if values else ""
        print(clean(f"  {because['kind']}, line {because['line']}: {because['when']}{met}"))


def is_down(each: Answer, other: str = "A WAN port") -> str:
    """The clause that a WAN port is down; it is ``other`` to a user's token, which gets no names of the network."""
    where = f"WAN port {each['port']} of {', '.join(each['switches'])}" if each["port"] else other
    return f"{where} is down, and nothing takes its place"


def _version_then(found: Answer) -> str:
    """The version of the policy by which a job that is over was decided; a controller before this one names none."""
    over = found["state"] in ("ended", "refused") and found.get("policy_version")
    return f" (by version {over} of the policy)" if over else ""


def _used(usage: Answer | None) -> str:
    if usage is None:
        return "not counted"
    parts = []
    for word, way in (("sent", "out"), ("received", "in")):
        parts.append(f"{word} {_size(usage[f'bytes_{way}'])} ({_size(usage[f'wan_bytes_{way}'])} WAN)")
    dropped = usage["policy_drops_in"] + usage["policy_drops_out"] + usage["rate_drops_in"] + usage["rate_drops_out"]
    now = f"; now {usage['rate']['outward']:.1f} out, {usage['rate']['inward']:.1f} in Mb/s"
    if usage.get("unread"):
        now = "; the rate now is not known"
    now = "" if usage["final"] else now
    return f"{', '.join(parts)}, {dropped} packets dropped{now}"


def _moved_under(found: Answer) -> list[tuple[str, str]]:
    """The terms of a job's transfers, and why they are not in place where they are not."""
    terms, state = found["decision"].get("transfers"), found.get("transfers")
    if not terms:
        return []
    pending = "" if state is None or state["enforced"] else f"; pending: {state['reason']}"
    return [("transfer rule", f"{terms['words']}{pending}")]


def _transferred(usage: Answer | None) -> list[tuple[str, str]]:
    """The bytes that HTCondor moved for a job outside of the job's network, and together with the job's own."""
    # A controller before this version has none.
    if usage is None or not usage.get("transfer_seconds"):
        return []
    sizes = {
        way: (usage[f"transfer_bytes_{way}"], usage[f"transfer_wan_bytes_{way}"], usage[f"bytes_{way}"])
        for way in ("out", "in")
    }
    parts = [
        f"{word} {_size(sizes[way][0])} ({_size(sizes[way][1])} WAN)" for word, way in (("out", "out"), ("in", "in"))
    ]
    rate = usage["rate"]
    now = f"; now {rate['transfer_outward']:.1f} out, {rate['transfer_inward']:.1f} in Mb/s"
    together = ", ".join(f"{_size(sizes[way][0] + sizes[way][2])} {way}" for way in ("out", "in"))
    seconds = f"{usage['transfer_seconds']:.0f} s"
    return [
        ("transfers", f"{', '.join(parts)}, in {seconds}{'' if usage['final'] else now}"),
        ("together", together),
    ]


def advice(found: Answer) -> None:
    """A job's request against its use and losses, and the rate to ask for."""
    print(clean(f"{'so far: ' if found['so_far'] else ''}{found['sentence']}"))
    if not found["seconds"]:
        return
    head = ("", "MEAN", "HIGHEST", "LOST IN QUEUES")
    rows = [
        (word, f"{found['mean'][rate]:.2f}", f"{found['highest'][rate]:.2f}", found[f"dropped_{way}"])
        for word, rate, way in (("sent", "outward", "out"), ("received", "inward", "in"))
    ]
    table(head, rows)
    asks = found["advised"] is not None and (found["advised"] != found["asked"] or found["asked"] is None)
    if asks:
        print(f"In the submit file: request_bandwidth = {found['advised']}")


def _size(count: int) -> str:
    """Bytes in the decimal units that network rates have."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def cleared() -> None:
    """Begin again at the top of a terminal; elsewhere an empty line stands between two tables."""
    print("\x1b[H\x1b[2J" if sys.stdout.isatty() else "", end="" if sys.stdout.isatty() else "\n")


def _vlan(found: Answer) -> list[str]:
    return [] if found["vlan"] is None else [f"VLAN {found['vlan']}"]


def _place(found: Answer) -> str:
    if not found["port"]:
        return f"no port named, on {found['host']}"
    return f"port {found['port']} of {found['datapath'] or found['host']}"


def switches(found: Sequence[Answer]) -> None:
    """A table of switches."""
    rows = [
        (
            each["datapath"],
            each["name"],
            each["role"],
            each["state"],
            each["jobs"],
            f"{each['installed']}/{each['desired']}",
            each["max_rules"] or "",
            each["reason"],
        )
        for each in found
    ]
    table(("DATAPATH", "NAME", "ROLE", "STATE", "JOBS", "FLOWS", "LIMIT", "REASON"), rows)


def switch(found: Answer) -> None:
    """One switch, with its ports and problems."""
    switches([found])
    print()
    rows = [
        (port["number"], port["name"], port["role"], port["job_name"] or port["job"] or "") for port in found["ports"]
    ]
    table(("PORT", "NAME", "ROLE", "JOB"), rows)
    for problem in found["problems"]:
        whose = problem["job_name"] or problem["job"] or ""
        print(clean(f"{problem['at']} {problem['problem']} {problem['flow']} {whose}".rstrip()))


def flows(found: Sequence[Answer]) -> None:
    """A table of flows, each with its origin in the policy, before the match and the actions, which may be long."""
    rows = [
        (
            f"{each['table']} {each['table_name']}",
            each["priority"],
            "" if each["packets"] is None else each["packets"],
            each["state"],
            each["origin"],
            each["match"] or "any",
            each["actions"] or "drop",
        )
        for each in found
    ]
    table(("TABLE", "PRIORITY", "PACKETS", "STATE", "ORIGIN", "MATCH", "ACTIONS"), rows)


def audit(found: Sequence[Answer]) -> None:
    """A table of the audit trail."""
    rows = [
        (each["at"], each["actor"], each["action"], each["name"] or each["subject"], each["detail"]) for each in found
    ]
    table(("WHEN", "WHO", "WHAT", "CONCERNS", "DETAIL"), rows)


def reservations(found: Sequence[Answer]) -> None:
    """A table of reservations."""
    rows = [
        (
            each["id"],
            each["kind"],
            f"{each['rate']:g}",
            each["source"],
            each["destination"] + (f", job {each['peer_name'] or each['peer']}" if each["peer"] else ""),
            each["job_name"] or each["job"] or "",
            each["until"] or "its jobs end",
            _stands(each),
        )
        for each in found
    ]
    table(("RESERVATION", "KIND", "MBIT/S", "FROM", "TO", "JOB", "UNTIL", "STATE"), rows)


def _stands(found: Answer) -> str:
    """The state of a reservation, with the reason; nothing of one that has no job."""
    state = found.get("state") or ""
    return f"{state}: {found['reason']}" if state and found["reason"] else state


def reservation(found: Answer) -> None:
    """One reservation, with what it takes of each link."""
    pairs = [
        ("reservation", found["id"]),
        ("kind", found["kind"]),
        ("rate", f"{found['rate']:g} Mb/s{', and no more' if found['steady'] else ''}"),
        ("from", found["source"] + (f", job {found['job_name'] or found['job']}" if found["job"] else "")),
        ("to", found["destination"] + (f", job {found['peer_name'] or found['peer']}" if found["peer"] else "")),
        ("addresses", " ".join(found["addresses"]) or "all"),
        ("until", found["until"] or "its jobs end"),
        ("made", f"{found['created']} by {found['actor']}"),
    ]
    if found.get("state"):
        pairs.append(("state", _stands(found)))
    _pairs(pairs + [("takes", f"{each['rate']:g} Mb/s of {each['channel']}") for each in found["holds"]])


def links(found: Sequence[Answer]) -> None:
    """A table of links: capacity, reserved rate and rest."""
    rows = [
        (
            each["name"],
            f"{each['source']} to {each['target']}" if each["source"] else _both_ways(each),
            f"{each['capacity']:g}",
            f"{each['reserved']:g}",
            f"{each['best_effort']:g}",
        )
        for each in found
    ]
    table(("LINK", "DIRECTION", "MBIT/S", "RESERVED", "BEST EFFORT"), rows)


def _both_ways(link: Answer) -> str:
    # A controller before this version names no ends.
    return f"{' and '.join(link['ends'])}, both" if link.get("ends") else "both"


def policy(found: Answer) -> None:
    """A policy's text as it was put, and its version on standard error: the text may be edited and put again."""
    print(clean(f"# version {found['version']}, put in force at {found['at']}, by {found['actor']}"), file=sys.stderr)
    print(found["text"], end="" if found["text"].endswith("\n") else "\n")


def policy_history(found: Sequence[Answer], more: bool = False) -> None:
    """A table of the policy's versions; ``more``: there are older ones."""
    rows = [(each["version"], each["at"], each["actor"], each["digest"][:12]) for each in found]
    table(("VERSION", "IN FORCE FROM", "BY", "SHA-256"), rows)
    if more:
        print("… and older versions: --limit shows more")


def policy_difference(found: Answer) -> None:
    """The lines by which two versions of the policy differ."""
    for sign, name in (("---", "old"), ("+++", "new")):
        each = found[name]
        print(clean(f"{sign} version {each['version']}, {each['at']}, by {each['actor']}"))
    # A text that is in the store may have other line breaks of YAML: such a line would have no sign.
    for line in found["diff"].split("\n")[:-1]:
        print(_word(clean(line), _SIGNS.get(line[:1])))
    if not found["diff"]:
        print("The texts are equal.")


def plan(found: Answer, jobs: bool = False, flows: bool = False) -> None:
    """The changes that a policy would make: the effect on jobs, then on switches; each job and flow where wanted."""
    for refusal in found["refusals"]:
        print(f"{_word('refused')}: {clean(refusal)}")
    for warning in found["warnings"]:
        print(f"warning: {clean(warning)}")
    changed = found["jobs_changed"]
    print(f"{changed} of {several(found['jobs_examined'], 'job')} would be treated otherwise{':' if changed else ''}")
    for effect in found["effects"]:
        whose = f"{several(effect['jobs'], 'job')} of {several(effect['owners'], 'user')}"
        such = "such as " if effect["jobs"] > 1 else ""
        example = f"{such}{effect['example']} of {effect['example_owner']}"
        print(clean(f"  {whose} ({example}): {'; '.join(effect['changes'])}"))
    listed = sum(effect["jobs"] for effect in found["effects"])
    if changed > listed:
        print(f"  … and {several(changed - listed, 'job')} with other changes")
    if jobs:
        _planned_jobs(found)
    _planned_flows(found["switches"], flows)
    hidden = [f"--{name}" for name, shown, any_ in (("jobs", jobs, changed), ("flows", flows, found["switches"]))
              if any_ and not shown]  # fmt: skip
    if hidden:
        print(f"More with {' and '.join(hidden)}.")


def _planned_jobs(found: Answer) -> None:
    named = [{**change, "id": change["job_id"]} for change in found["jobs"]]
    called = _names(named)
    for change in named:
        print(clean(f"job {called[change['id']]} ({change['owner']}): {'; '.join(change['changes'])}"))
    if found["jobs_changed"] > len(named):
        print(f"… and {several(found['jobs_changed'] - len(named), 'job')} more")


_CHANGES: Final = ("added", "changed", "removed")


def _planned_flows(switches: Sequence[Answer], flows: bool) -> None:
    flowing = [each for each in switches if any(each[name] for name in _CHANGES)]
    if flowing:
        new, changed, gone = (sum(each[name] for each in flowing) for name in _CHANGES)
        count = several(len(flowing), "switch", "switches")
        print(f"flows on {count} would change: {new} new, {changed} changed, {gone} gone")
    else:
        print("no flow would change")
    metered = [each["meters"] for each in switches if each.get("meters")]
    if metered:
        print(f"{several(sum(metered), 'meter')} on {several(len(metered), 'switch', 'switches')} would change")
    for each in switches if flows else ():
        limit = f" of {each['max_rules']}" if each["max_rules"] else ""
        counts = f"+{each['added']} ~{each['changed']} -{each['removed']}, then {each['total']}{limit} flows"
        if each.get("meters"):
            counts += f"; {several(each['meters'], 'meter')} would change"
        print(clean(f"{each['name'] or each['datapath']}: {counts}"))
        for line in each["sample"]:
            print(clean(f"  {line}"))
        more = each["added"] + each["changed"] + each["removed"] - len(each["sample"])
        if more > 0:
            print(f"  … and {more} more")


def several(count: int, word: str, plural: str = "") -> str:
    """A number with its word, in the singular or plural."""
    return f"{count} {word}" if count == 1 else f"{count} {plural or word + 's'}"


def explanation(found: Answer) -> None:
    """Print why a packet reaches its destination, or does not."""
    for number, step in enumerate(found["steps"], 1):
        print(clean(f"{number}. {step['where']}: {step['text']}"))
        if step["flow"]:
            counted = "" if step["packets"] is None else f"  ({step['packets']} packets)"
            print(clean(f"   {step['flow']}{counted}"))
    print(f"{_word(found['verdict'])}: " + clean(f"{found['src']} to {found['dst']}: {found['reason']}"))


def _addresses(found: Answer) -> str:
    return " ".join(each["address"] for each in found["addresses"])


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def clean(value: object) -> str:
    """Replaces control characters, since an ad may hold anything; a terminal gets printable characters alone."""
    return "".join(character if character.isprintable() else "\ufffd" for character in str(value))


def _word(text: str, colour: str | None = None) -> str:
    """A word in its colour (or another), where standard output is a terminal (and NO_COLOR is not set)."""
    colour = colour or _COLOURS.get(text.strip())
    if colour is None or not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{colour}m{text}\x1b[0m"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Rows under a head, in columns. The last column is not filled up."""
    texts = [[clean(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [list(head), *texts]) for column in range(len(head))]
    for row in [list(head), *texts]:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(map(_word, [*cells[:-1], row[-1]])).rstrip())


def _pairs(pairs: Sequence[tuple[str, object]]) -> None:
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        print(f"{name.ljust(width)}  {value if name == 'state' else clean(value)}")
