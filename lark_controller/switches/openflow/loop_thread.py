"""The os-ken application, and the thread on which everything that touches switches runs."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar, cast, overload

from os_ken.base import app_manager
from os_ken.ofproto import ofproto_v1_3

from lark_common.exhausted import EXHAUSTED, exhausted
from lark_controller.switches.fence import Fence
from lark_controller.switches.openflow.connection import OpenFlowOptions
from lark_controller.switches.openflow.handed_over import HandedOver
from lark_controller.switches.openflow.link import SwitchHandler, SwitchLink
from lark_controller.switches.openflow.newcomer import ReadCounters
from lark_controller.switches.openflow.relays import OTHER_TERM, Seal, Way, no_seal
from lark_controller.switches.openflow.server import Server

T = TypeVar("T")
X = TypeVar("X")
# Seconds that the loop of switches that are kept may take for one turn.
LOOP_SECONDS: Final = 5.0
_numbers = itertools.count(1)


class LarkSwitches(app_manager.OSKenApp):
    """The os-ken application that owns the OpenFlow listener.

    os-ken's own controller and event threads are not started: ``start`` runs one thread with one event loop, which
    serves every switch (see docs/design/openflow.md).
    """

    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]  # noqa: RUF012  # os-ken's declaration, a class attribute by contract

    def __init__(self, *args: Any, server: Server, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # os-ken keeps applications by name; two controllers in one process (as in tests) need two.
        self.name = f"{type(self).__name__}-{next(_numbers)}"
        self.server = server
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_complain)
        self._thread = threading.Thread(target=self._run, name="openflow", daemon=True)

    def start(self) -> None:
        """Start the thread and listen. Raises SettingError where an address or certificate cannot be used."""
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self.server.start(), self.loop).result()
        except BaseException:
            self._end()
            raise

    def stop(self) -> None:
        """Close everything and end the thread; the switches keep their flows."""
        self.is_active = False
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self.server.stop(), self.loop).result()
            self._end()

    @property
    def thread(self) -> threading.Thread:
        """The thread of the loop."""
        return self._thread

    def _end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(_end_tasks())
        finally:
            self.loop.close()


def _complain(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Logs asyncio's own errors. Without descriptors it reports that once for each place in the listener's queue."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in EXHAUSTED:
        exhausted("OpenFlow", error)
    else:
        loop.default_exception_handler(context)


async def _end_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class KeptSwitches:
    """The switches of an instance that stands by, each kept as a slave's connection of the generation that ``known``
    gives, until :class:`OpenFlow` takes them over. ``seal`` gives the key of the present term."""

    def __init__(
        self,
        options: OpenFlowOptions,
        fence: Fence,
        known: Callable[[], int],
        seal: Callable[[], Seal] = no_seal,
    ) -> None:
        self._options = options
        self._fence = fence
        self._known = known
        self.seal = seal
        self._app: LarkSwitches | None = None

    def start(self) -> None:
        """Listen. Raises SettingError."""
        self._app = _started(Server(self._options, None, self._fence, self._known, self.seal))

    def lead(self, generation: int) -> None:
        """Become the master of all of them: the term with this generation is this instance's. Nothing waits."""
        if self._app is not None:
            self._app.loop.call_soon_threadsafe(self._app.server.lead, generation)

    def take(self) -> LarkSwitches | None:
        """The application, which is another's from now on; None where it was not started."""
        app, self._app = self._app, None
        return app

    def stop(self) -> None:
        """Stop listening and close all connections, if they are not another's."""
        if (app := self.take()) is not None:
            _stop(app)

    def is_alive(self) -> bool:
        """False where its thread has ended although nobody stopped it, or its loop does not turn: a takeover would wait
        for it without end. May wait."""
        app = self._app  # Once: another thread may take it.
        if app is None:
            return True
        turned = threading.Event()
        with suppress(RuntimeError):  # The loop has ended.
            app.loop.call_soon_threadsafe(turned.set)
            turned.wait(LOOP_SECONDS)
        return turned.is_set() or self._app is not app

    def read_counters(
        self, datapaths: Sequence[int], cookie: int, mask: int, timeout: float, until: float
    ) -> dict[int, ReadCounters | None]:
        """The counters of those of these switches that are kept and answer within ``timeout`` seconds; None of those
        that had no turn in time, since all ends at ``until``, of the monotonic clock. For another thread than the
        loop's."""
        seconds = max(0.0, until - time.monotonic()) + LOOP_SECONDS
        found = self._called(lambda server: server.read_counters(datapaths, cookie, mask, timeout, until), seconds)
        return found or {}

    def datapaths(self) -> tuple[int, ...]:
        """The switches that are kept. For another thread than the loop's."""

        async def kept(server: Server) -> tuple[int, ...]:
            return tuple(server.kept)

        return self._called(kept, LOOP_SECONDS) or ()

    def hand_on(self, datapaths: Sequence[int], ways: Sequence[Way], seconds: float) -> None:
        """Hand those of these switches that are kept on to the active instance, in about so many seconds at most. For
        another thread than the loop's."""
        self._called(lambda server: server.hand_on(datapaths, ways), seconds)

    def end_relays(self) -> None:
        """End the handing on: the term is another's. Nothing waits."""
        if (app := self._app) is not None:
            with suppress(RuntimeError):  # The loop has ended.
                app.loop.call_soon_threadsafe(app.server.relays.end, OTHER_TERM)

    def _called(self, work: Callable[[Server], Coroutine[Any, Any, T]], seconds: float) -> T | None:
        """Run a coroutine on the loop; None where that is not there, or has not ended in time."""
        app = self._app
        if app is None or not app.loop.is_running():
            return None
        coroutine = work(app.server)
        try:
            done = asyncio.run_coroutine_threadsafe(coroutine, app.loop)
        except RuntimeError:  # The loop has ended.
            coroutine.close()
            return None
        try:
            return done.result(seconds)
        except (TimeoutError, CancelledError):  # It does not turn, or ends.
            done.cancel()
            return None

    @property
    def handed_on(self) -> int:
        """The number of switches that are handed on to the active instance now."""
        app = self._app
        return 0 if app is None else app.server.relays.count

    def reached(self, datapaths: Iterable[int]) -> int:
        """The number of these switches that are kept, or handed on. From any thread."""
        app = self._app
        return 0 if app is None else sum(map(app.server.reaches, datapaths))

    @property
    def count(self) -> int:
        """The number of switches that are kept now."""
        app = self._app
        return 0 if app is None else len(app.server.kept)


def _started(server: Server) -> LarkSwitches:
    """The application, started under os-ken's AppManager. Raises SettingError."""
    applications = app_manager.AppManager.get_instance()
    app = applications.instantiate(LarkSwitches, server=server)
    try:
        app.start()
    except BaseException:
        applications.uninstantiate(app.name)
        raise
    return cast(LarkSwitches, app)


def _stop(app: LarkSwitches) -> None:
    app_manager.AppManager.get_instance().uninstantiate(app.name)


class OpenFlow:
    """All switches, for a program that lives on other threads; nothing is written once the ``fence`` is shut.

    Those in ``kept`` are connected already, and may be led already.
    """

    def __init__(
        self,
        options: OpenFlowOptions,
        handler: SwitchHandler,
        fence: Fence | None = None,
        kept: KeptSwitches | None = None,
    ) -> None:
        self._options = options
        self._fence = fence or Fence()
        self._handler = handler
        self._kept = kept
        self._app: LarkSwitches | None = None
        self._handed_over = HandedOver(lambda: self.loop)

    def start(self) -> None:
        """Listen, and take in the switches that are kept. Raises SettingError."""
        app = None if self._kept is None else self._kept.take()
        if app is None:
            seal = no_seal if self._kept is None else self._kept.seal
            self._app = _started(Server(self._options, self._handler, self._fence, seal=seal))
            return
        # Its thread takes switches in from the next moment on, with a handler that may need what is here.
        self._app = app
        app.loop.call_soon_threadsafe(app.server.lead, self._options.generation)
        app.loop.call_soon_threadsafe(app.server.serve, self._handler)

    def stop(self) -> None:
        """Stop listening and disconnect all switches, which keep their flows. May be called again."""
        if self._app is not None:
            app, self._app = self._app, None
            _stop(app)
            self._handed_over.forget()

    @property
    def running(self) -> bool:
        """True between ``start`` and ``stop``."""
        return self._app is not None

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """The threads that live from start to stop."""
        return (self._there().thread,)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that serves all switches."""
        return self._there().loop

    @property
    def links(self) -> dict[int, SwitchLink]:
        """The connected switches by datapath id; to be read on the loop's thread."""
        return self._there().server.links

    def present(self) -> frozenset[int]:
        """The switches that are connected, taken in or not, by datapath id; to be called on the loop's thread."""
        return self._there().server.present()

    def listeners(self) -> tuple[tuple[tuple[str, int], ...], ...]:
        """The addresses of the listener over TCP, and of that over TLS."""
        return self.addresses, self.tls_addresses

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """The addresses of the listener over TCP (ports that were 0 are filled in)."""
        return self._there().server.addresses

    @property
    def tls_addresses(self) -> tuple[tuple[str, int], ...]:
        """The addresses of the listener over TLS."""
        return self._there().server.tls_addresses

    @overload
    def call(self, work: Coroutine[Any, Any, T]) -> Future[T]: ...
    @overload
    def call(self, work: Callable[[], Awaitable[T]]) -> Future[T]: ...
    @overload
    def call(self, work: Callable[[], T]) -> Future[T]: ...
    def call(self, work: Coroutine[Any, Any, Any] | Callable[[], Any]) -> Future[Any]:
        """Run a function or a coroutine on the loop's thread, from any other thread, after all that was handed over.

        Where a function returns an awaitable, the future ends with what that ends with. Raises RuntimeError where the
        loop has ended.
        """
        coroutine = work if inspect.iscoroutine(work) else _called(cast(Callable[[], Any], work))
        turn: Future[None] = Future()

        async def in_turn() -> Any:
            await asyncio.wrap_future(turn)
            return await coroutine

        waiting = in_turn()
        try:
            found = asyncio.run_coroutine_threadsafe(waiting, self.loop)
        except RuntimeError:
            # Python would warn of coroutines that nobody has begun.
            waiting.close()
            coroutine.close()
            raise
        self._handed_over.call(partial(_begin, turn))
        return found

    def hand_over(self, work: Callable[[X], object], value: X) -> None:
        """Hand a value to the loop's thread, from any thread; values arrive in the order of the calls, and nothing
        waits. A loop that has ended has no use for it."""
        with suppress(RuntimeError):
            self._handed_over.put(work, value)

    def call_in_turn(self, work: Callable[[], object]) -> None:
        """Call ``work`` on the loop's thread after all that was handed over before, without waiting for it. Raises
        RuntimeError where the loop has ended."""
        self._handed_over.call(work)

    def _there(self) -> LarkSwitches:
        if self._app is None:
            raise RuntimeError("OpenFlow is not started")
        return self._app


def _begin(turn: Future[None]) -> None:
    if turn.set_running_or_notify_cancel():
        turn.set_result(None)


async def _called(function: Callable[[], Any]) -> Any:
    result = function()
    return await result if inspect.isawaitable(result) else result
