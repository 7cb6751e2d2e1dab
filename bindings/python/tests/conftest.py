"""What the tests share: models, and arrays of the digits."""

import importlib
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

import of_opt

ROOT = Path(__file__).resolve().parents[3]
DIGITS = ROOT / "examples/digits/digits.onnx"

# A run as long as an input says.
LOOP = b"""
func @main(%n: tensor<i64>, %x: tensor<1024xf32>) -> (tensor<1024xf32>) {
  %none = of.none
  %last = of.loop %n, %none, %x : (tensor<i64>, none, tensor<1024xf32>) -> tensor<1024xf32> {
  ^(%i: tensor<i64>, %c: tensor<i1>, %s: tensor<1024xf32>):
    %m = of.sin %s : (tensor<1024xf32>) -> tensor<1024xf32>
    of.yield %c, %m : (tensor<i1>, tensor<1024xf32>) -> ()
  }
  of.return %last : (tensor<1024xf32>) -> ()
}
"""

# An open extent.
ROWS = b"""
func @main(%x: tensor<?(N)x4xf32>) -> (tensor<?(N)x4xf32>) {
  %y = of.add %x, %x : (tensor<?(N)x4xf32>, tensor<?(N)x4xf32>) -> tensor<?(N)x4xf32>
  of.return %y : (tensor<?(N)x4xf32>) -> ()
}
"""


def require(name):
    """A package that only some tests need. Without it they are skipped, unless OF_REQUIRE names it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        if name in os.environ.get("OF_REQUIRE", "").split(","):
            raise
        text = f"SKIPPED: tests that need {name}, which is not installed ('OF_REQUIRE={name} cargo xtask components')"
        return pytest.skip(text, allow_module_level=True)


@pytest.fixture(scope="session")
def images():
    return np.load(ROOT / "examples/digits/images.npy")


@pytest.fixture(scope="session")
def digits():
    """The plan of the digits, for any number of images."""
    return of_opt.compile(DIGITS, threads=1)


@pytest.fixture(scope="session")
def loop():
    return of_opt.compile(LOOP, threads=1)


@pytest.fixture(scope="session")
def rows():
    return of_opt.compile(ROWS, threads=1)


@pytest.fixture
def interrupt_soon():
    """Sends Ctrl-C after some seconds."""
    # A process that a script starts in the background ignores the signal.
    previous, timers = signal.signal(signal.SIGINT, signal.default_int_handler), []

    def start(seconds):
        timers.append(threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)))
        timers[-1].start()

    yield start
    [timer.join() for timer in timers]
    signal.signal(signal.SIGINT, previous)
