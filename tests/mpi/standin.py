"""A worker service's socket for each of several jobs, and the controller behind them, in memory."""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit


class Standin:
    """Jobs, each alone on its host, whose access links carry ``capacity`` Mb/s in each direction."""

    def __init__(self, folder: Path, hosts: list[str], capacity: float = 100.0) -> None:
        self.hosts, self.capacity = hosts, capacity
        self.reservations: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[int, str, str]] = []
        # An answer instead of the usual one, by job, method and path.
        self.instead: Callable[[int, str, str], bytes | None] = lambda job, method, path: None
        # Called before a request is looked at, with its job and method: it may take its time.
        self.delay: Callable[[int, str], None] = lambda job, method: None
        self.most = 0.0
        # Requests that are waiting for other paths.
        self.waiting = 0
        # Half of what is promised is delivered, and counted.
        self.counts = False
        # State and reason of a reservation, by its job; None: a service of before, which tells neither.
        self.standing: Callable[[int], tuple[str, str] | None] = lambda job: ("enforced", "")
        self._lock = threading.Lock()
        self._made = 0
        self.sockets = [folder / f"job{number}.sock" for number in range(len(hosts))]
        self._servers = [self._server(number, path) for number, path in enumerate(self.sockets)]

    def _server(self, number: int, path: Path) -> socketserver.UnixStreamServer:
        standin = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                data = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                parts = urlsplit(self.path)
                target, query = parts.path, parse_qs(parts.query)
                self.close_connection = True
                if target == "/v1/paths":
                    standin.wait(number, query.get("after", [""])[-1], float(query.get("wait", ["0"])[-1]))
                standin.delay(number, self.command)
                with standin._lock:
                    standin.requests.append((number, self.command, target))
                    odd = standin.instead(number, self.command, target)
                    if odd is not None:
                        self.wfile.write(odd)
                        return
                    status, document = standin.answer(number, self.command, target, json.loads(data or b"{}"))
                text = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815

            def log_message(self, *args: Any) -> None:
                pass

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, *args: Any) -> None:
                """Callers go away."""

        server = Server(str(path), Handler)
        path.chmod(0o666)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return server

    def live(self) -> dict[str, dict[str, Any]]:
        """The reservations that are not over."""
        self.reservations = {
            key: each for key, each in self.reservations.items() if each["until"] is None or each["until"] > time.time()
        }
        return self.reservations

    def rates(self) -> dict[tuple[str, str], float]:
        """The live rates, Mb/s by the jobs from and to."""
        with self._lock:
            found: dict[tuple[str, str], float] = {}
            for each in self.live().values():
                found[each["job"], each["peer"]] = found.get((each["job"], each["peer"]), 0.0) + each["rate"]
            return found

    def answer(self, job: int, method: str, target: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        own, words = f"{job:016x}", target.strip("/").split("/")
        if words == ["v1", "job"]:
            # Without addresses the MTU is 1500, whatever routes this machine has.
            return 200, {"id": own, "host": self.hosts[job], "network_type": "ovs_bridge", "addresses": []}
        if words == ["v1", "paths"]:
            return 200, self._paths(own)
        if method == "POST":
            return self._reserve(own, body)
        found = self.live().get(words[-1])
        if found is None or found["job"] != own:
            return 404, {"detail": f"no reservation has the id {words[-1]}"}
        if method == "DELETE":
            del self.reservations[found["id"]]
        elif method == "PATCH":
            return self._change(found, body)
        standing = self.standing(job)
        return 200, found if standing is None else found | dict(zip(("state", "reason"), standing, strict=True))

    def wait(self, job: int, after: str, seconds: float) -> None:
        """Wait until a job's paths have another version."""
        end = time.monotonic() + seconds
        with self._lock:
            self.waiting += 1
        while time.monotonic() < end:
            with self._lock:
                if self._paths(f"{job:016x}")["version"] != after:
                    break
            time.sleep(0.01)
        with self._lock:
            self.waiting -= 1

    def _paths(self, own: str) -> dict[str, Any]:
        paths = []
        for each in self.live().values():
            if each["job"] == own:
                free = min(self.capacity - self._held(one["channel"]) for one in each["holds"])
                state, why = self.standing(int(own, 16)) or ("", "")
                path = {"reservation": each["id"], "peer": each["peer"], "rate": each["rate"], "free": round(free, 3)}
                paths.append({**path, "pending": why if state == "pending" else ""})
        # A word that is not safe in a query as it is; what is delivered is no part of it.
        version = f"{hash(json.dumps(paths))}&+"
        for each in paths if self.counts else ():
            each |= {"delivered": each["rate"] / 2, "delivered_bytes": 1045_685, "age": 0.25}
        return {"version": version, "paths": paths}

    def _reserve(self, own: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        peer, rate = body["destination"], body["rate"]
        # Of shares each is one of these; a worker service adds them up.
        same = [each for each in self.live().values() if (each["job"], each["peer"]) == (own, peer)]
        if same and not body.get("share"):
            return 422, {"detail": "there is a reservation for the same flow; change that one"}
        here, there = self.hosts[int(own, 16)], self.hosts[int(peer, 16)]
        channels = [f"access:{here} {here}>s", f"access:{there} s>{there}"]
        if problem := self._short(channels, rate):
            return problem
        self._made += 1
        made = {
            "id": f"{self._made:016x}",
            "job": own,
            "peer": peer,
            "rate": rate,
            "until": time.time() + body["duration"] if body.get("duration") else None,
            "steady": body["steady"],
            "holds": [{"channel": channel, "rate": rate} for channel in channels],
        }
        self.reservations[made["id"]] = made
        self._note()
        return 201, made

    def _change(self, found: dict[str, Any], body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        rate = body.get("rate", found["rate"])
        problem = self._short([each["channel"] for each in found["holds"]], rate - found["rate"])
        if rate > found["rate"] and problem:
            return problem
        found["rate"] = rate
        found["holds"] = [{**each, "rate": rate} for each in found["holds"]]
        found["steady"] = body["steady"]
        if body.get("duration"):
            found["until"] = time.time() + body["duration"]
        self._note()
        return 200, found

    def _note(self) -> None:
        self.most = max(self.most, sum(each["rate"] for each in self.live().values()))

    def _held(self, channel: str) -> float:
        return float(sum(e["rate"] for r in self.live().values() for e in r["holds"] if e["channel"] == channel))

    def _short(self, channels: list[str], rate: float) -> tuple[int, dict[str, Any]] | None:
        for channel in channels:
            if (left := self.capacity - self._held(channel)) < rate:
                short = {"link": channel, "asked": rate, "available": left}
                said = f'link {channel} has "{left:g}" Mb/s left\u2026 and {rate:g} are asked'
                return 409, {"detail": said, "links": [short]}
        return None

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
