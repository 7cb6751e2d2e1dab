"""Several requests to one plan at a time."""

from __future__ import annotations

import os
import queue
from typing import TYPE_CHECKING, Any, Dict, Optional

from ._native import Plan, Session

if TYPE_CHECKING:
    from concurrent.futures import Future

    import numpy as np


class SessionPool:
    """Sessions of one plan, which execute requests of several threads or tasks at a time.

    Each session has an equal share of the threads; code and weights are shared, and so are variables, whose updates follow one another.
    More threads for each session reduce latency, and more sessions raise throughput.

    >>> pool = of_opt.SessionPool(plan, sessions=4)
    >>> pool.run({"image": image})                              # from any thread; waits for a free session
    >>> future = pool.submit({"image": image})                  # a concurrent.futures.Future
    >>> await pool.run_async({"image": image})                  # in a coroutine

    Args:
        plan: the plan.
        sessions: requests that are executed at a time; further ones wait.
        threads: workers of all sessions together; 0 takes all cores that this process may use. Each session has one at least.
        memory: the most bytes that values of all sessions may take; None is this machine's memory for each.

    Raises:
        UnsupportedError: this machine cannot execute the plan.
        LimitError: the values take more memory than they may.
    """

    def __init__(self, plan: Plan, sessions: int = 2, *, threads: int = 0, memory: Optional[int] = None) -> None:
        if sessions < 1:
            raise ValueError("a pool has one session at least")
        affinity = getattr(os, "sched_getaffinity", None)
        all_threads = threads or (len(affinity(0)) if affinity else os.cpu_count() or 1)
        options: Dict[str, Any] = {"threads": max(1, all_threads // sessions)}
        if memory is not None:
            options["memory"] = memory // sessions
        first = Session(plan, **options)
        self._sessions = [first, *(Session(plan, variables=first.variables, **options) for _ in range(sessions - 1))]
        # The session that ran last has its data in the cache.
        self._free: "queue.LifoQueue[Session]" = queue.LifoQueue()
        for session in self._sessions:
            self._free.put(session)
        self._executor: Any = None

    def run(self, inputs: Dict[str, Any], outputs: "Optional[Dict[str, np.ndarray]]" = None) -> Dict[str, Any]:
        """As :meth:`Session.run`, in the next free session. Any number of threads may call it."""
        session = self._free.get()
        try:
            return session.run(inputs, outputs)
        finally:
            self._free.put(session)

    def submit(
        self, inputs: Dict[str, Any], outputs: "Optional[Dict[str, np.ndarray]]" = None
    ) -> "Future[Dict[str, Any]]":
        """Begins :meth:`run` in a thread of the pool. Inputs must not change until the future is done."""
        if self._executor is None:
            from concurrent.futures import ThreadPoolExecutor

            self._executor = ThreadPoolExecutor(len(self._sessions), thread_name_prefix="of_opt")
        return self._executor.submit(self.run, inputs, outputs)

    async def run_async(
        self, inputs: Dict[str, Any], outputs: "Optional[Dict[str, np.ndarray]]" = None
    ) -> Dict[str, Any]:
        """:meth:`run` for coroutines: the event loop goes on meanwhile."""
        import asyncio

        return await asyncio.wrap_future(self.submit(inputs, outputs))

    @property
    def variables(self) -> Any:
        """The variables, which all sessions share."""
        return self._sessions[0].variables

    def cancel(self) -> None:
        """Ends the runs that are in progress."""
        for session in self._sessions:
            session.cancel()

    def close(self) -> None:
        """Waits for the requests that were submitted, and ends the threads of the pool."""
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None

    def __enter__(self) -> SessionPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
