"""Several requests at a time."""

import asyncio
import threading
import time

import numpy as np
import pytest

import of_opt
from test_variables import COUNTER, VARIABLES, X

EXPECTED = [7, 0, 3, 9, 1, 4, 8, 2]


def test_requests_of_threads_futures_and_coroutines(digits, images):
    with of_opt.SessionPool(digits, sessions=2, threads=2) as pool:
        digit = lambda results: results["probability"].argmax(axis=1).tolist()
        futures = [pool.submit({"image": images[i : i + 1]}) for i in range(8)]
        assert [digit(future.result())[0] for future in futures] == EXPECTED
        found = []
        threads = [threading.Thread(target=lambda: found.append(digit(pool.run({"image": images})))) for _ in range(6)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert found == [EXPECTED] * 6

        async def all_digits():
            return await asyncio.gather(*(pool.run_async({"image": images[i : i + 1]}) for i in range(8)))

        assert [digit(results)[0] for results in asyncio.run(all_digits())] == EXPECTED
        room = np.zeros((8, 10), np.float32)
        assert pool.submit({"image": images}, {"probability": room}).result()["probability"] is room


def test_runs_overlap_and_are_cancelled(loop):
    pool = of_opt.SessionPool(loop, sessions=2, threads=2)
    names = [port.name for port in loop.inputs]
    endless = {names[0]: np.int64(1 << 39), names[1]: np.zeros(1024, np.float32)}
    futures = [pool.submit(endless), pool.submit(endless)]
    # Both are executed: each ends only if it is cancelled while it runs.
    for _ in range(600):
        pool.cancel()
        if all(future.done() for future in futures):
            break
        time.sleep(0.05)
    for future in futures:
        assert isinstance(future.exception(timeout=0), of_opt.CancelledError)
    assert pool.run({names[0]: np.int64(1), names[1]: endless[names[1]]})
    pool.close()


def test_errors_are_those_of_sessions(digits):
    pool = of_opt.SessionPool(digits, sessions=1)
    for _ in range(3):
        with pytest.raises(of_opt.InputError, match="no value for input 'image'"):
            pool.run({})
        with pytest.raises(of_opt.InputError, match="no value for input 'image'"):
            pool.submit({}).result()
    with pytest.raises(of_opt.LimitError, match="the budget is"):
        of_opt.SessionPool(of_opt.compile(COUNTER, threads=1), sessions=2, memory=2)
    with pytest.raises(ValueError, match="one session at least"):
        of_opt.SessionPool(digits, sessions=0)
    pool.close()


def test_sessions_of_a_pool_share_variables():
    plan = of_opt.compile(COUNTER, threads=1, variables=VARIABLES)
    with of_opt.SessionPool(plan, sessions=3) as pool:
        [future.result() for future in [pool.submit({"x": X[None]}) for _ in range(60)]]
        assert pool.variables["count"] == 60 and pool.variables["sum"].tolist() == (60 * X).tolist()
