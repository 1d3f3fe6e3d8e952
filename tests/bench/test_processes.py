"""CPU time of a tree of processes."""

import os
import sys

import pytest

from forwardpass.bench.processes import cpu_seconds
from forwardpass.errors import ParameterError

TICKS = os.sysconf("SC_CLK_TCK")


def write(folder, pid, name, parent, user, system, waited_user=0, waited_system=0):
    (folder / str(pid)).mkdir()
    fields = ["S", parent, 1, 1, 0, -1, 0, 0, 0, 0, 0, user, system, waited_user, waited_system, 20, 0]
    (folder / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(map(str, fields))}\n")


def test_a_tree_by_hand(tmp_path):
    write(tmp_path, 1, "init", 0, 1000, 1000)
    write(tmp_path, 10, "server", 1, 100, 20, 3, 4)
    write(tmp_path, 11, "a) S 1 (b", 10, 5, 6)  # names may look like the rest of the line
    write(tmp_path, 12, "worker", 11, 7, 8)
    write(tmp_path, 13, "another", 1, 500, 500)
    (tmp_path / "20").mkdir()  # ended between the listing and the reading
    (tmp_path / "version").write_text("x")
    assert cpu_seconds(10, tmp_path) == pytest.approx((100 + 20 + 3 + 4 + 5 + 6 + 7 + 8) / TICKS)
    assert cpu_seconds(12, tmp_path) == pytest.approx(15 / TICKS)


def test_an_unknown_process(tmp_path):
    with pytest.raises(ParameterError, match="--pid 77: expected a process"):
        cpu_seconds(77, tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_this_process():
    before, used = cpu_seconds(os.getpid()), os.times()
    while os.times().user - used.user < 0.05:
        sum(range(10_000))
    assert cpu_seconds(os.getpid()) - before >= 0.04
