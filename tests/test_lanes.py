"""Threads that compute while the caller goes on."""

import subprocess
import sys
import threading
from concurrent.futures import CancelledError

import pytest

from tdumpra.lanes import Lanes

_CLOSING = """
import sys
from tdumpra.lanes import Lanes

sys.setswitchinterval(1e-6)
for _ in range(100):
    with Lanes(4) as lanes:
        for _ in range(40):
            lanes.submit(int)
"""
_ENDING = """
import threading, time
from tdumpra.lanes import Lanes

begun = threading.Event()

def call():
    begun.set()
    time.sleep(0.2)
    print("to the end", flush=True)

lanes = Lanes(1)
lanes.submit(call)
lanes.submit(print, "never")
begun.wait()
{}
"""


def _run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)


def test_lanes_close_while_they_take_calls():
    assert _run(_CLOSING).returncode == 0


def test_a_program_that_ends_waits_for_the_call_under_way_and_for_no_other():
    for last, code in (("", 0), ("lanes.close()", 0), ("raise SystemExit(2)", 2)):
        ended = _run(_ENDING.format(last))
        assert (ended.returncode, ended.stdout, ended.stderr) == (code, "to the end\n", "")


def test_closed_lanes_can_be_waited_for():
    lanes = Lanes(2)
    done = [lanes.submit(int, "1") for _ in range(3)]
    assert [each.result() for each in done] == [1, 1, 1]
    lanes.close()
    lanes.wait()


def test_whoever_waits_for_a_call_that_is_dropped_is_told():
    begun, end = threading.Event(), threading.Event()

    def busy() -> None:
        begun.set()
        end.wait(10)

    with Lanes(1) as lanes:
        lanes.submit(busy)
        waiting = lanes.submit(int)
        begun.wait(10)
    with pytest.raises(CancelledError):
        waiting.result(timeout=10)
    end.set()
