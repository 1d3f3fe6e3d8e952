"""The thread pool: everybody runs every job, barriers hold, pools do not disturb each other, forks are caught."""

import os
import subprocess
import sys
import threading

import pytest

from forwardpass import _native


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_member_runs_every_job_and_barriers_hold(size):
    pool = _native.Pool(size)
    jobs = 1000 if size <= 2 else 200
    for _ in range(2):
        assert _native.testing.run_pool(pool, jobs) == ([jobs] * size, 0)


def test_pools_side_by_side_and_one_after_another():
    pools = [_native.Pool(size) for size in (1, 2, 3)]
    for _ in range(20):
        for pool in pools:
            assert _native.testing.run_pool(pool, 5) == ([5] * pool.threads, 0)
    for _ in range(100):
        assert _native.testing.run_pool(_native.Pool(2), 1) == ([1, 1], 0)


def test_callers_from_several_threads_take_turns():
    pool, results = _native.Pool(2), []
    threads = [threading.Thread(target=lambda: results.append(_native.testing.run_pool(pool, 200))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [([200, 200], 0)] * 4


FORK = """
import os, sys
from forwardpass import _native
pool = _native.Pool(2)
assert _native.testing.run_pool(pool, 10) == ([10, 10], 0)
child = os.fork()
if child == 0:
    fresh = _native.Pool(2)
    assert _native.testing.run_pool(fresh, 10) == ([10, 10], 0)
    try:
        _native.testing.run_pool(pool, 1)
    except RuntimeError as error:
        assert "forked" in str(error)
        sys.exit(7)
    sys.exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert _native.testing.run_pool(pool, 10) == ([10, 10], 0)
print("fine")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_gets_an_error_instead_of_a_hang():
    """Threads do not survive a fork: the child can make a pool of its own, and neither use nor leaving hangs."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, timeout=60)
    assert done.stdout == "fine\n", done.stderr
