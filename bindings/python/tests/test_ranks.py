"""Sessions on meshes: ranks as threads and as processes."""

import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import of_opt

TYPE = "tensor<4x6xf32, #of.sbp<@m, [{layout}]>>"

# A state that is summed up, split over two ranks.
MODEL = """of.mesh @m {{devices = "cpu", shape = [2]}}
func @main(%x: {t} {{of.name = "x"}}, %s: {t} {{of.name = "state"}}) -> ({t} {{of.name = "y"}}, {t} {{of.name = "next"}}) {{
  %n = of.add %s, %x : ({t}, {t}) -> {t}
  %y = of.neg %n : ({t}) -> {t}
  of.return %y, %n : ({t}, {t}) -> ()
}}"""

# A product whose sum is over ranks, so that they exchange data in each run.
SUMS = b"""
func @main(%x: tensor<4x64xf32>, %w: tensor<64x8xf32>) -> (tensor<4x8xf32> {of.name = "y"}) {
  %y = of.matmul %x, %w
  of.return %y
}
"""

X = np.arange(24, dtype=np.float32).reshape(4, 6)


def counter(layout="S(0)"):
    text = MODEL.format(t=TYPE.format(layout=layout))
    return of_opt.compile(text.encode(), mesh="cpu[2]", threads=2, variables={"next": "state:zeros"})


@pytest.mark.parametrize("layout", ["S(0)", "S(1)", "B"])
@pytest.mark.parametrize("ranks", [None, 2])
def test_variables_of_ranks_are_whole(layout, ranks):
    session = of_opt.Session(counter(layout), ranks=ranks)
    variables = session.variables
    assert list(variables) == ["state"] and "state" in variables and len(variables) == 1
    for step in range(1, 4):
        assert np.array_equal(session.run({"x": X})["y"], -step * X)
    assert np.array_equal(variables["state"], 3 * X)
    variables["state"] = 10 * X
    assert np.array_equal(session.run({"x": X})["y"], -11 * X)
    variables.reset()
    assert np.array_equal(variables["state"], 0 * X)
    # What does not fit is an error of this process, after which ranks go on.
    with pytest.raises(of_opt.InputError):
        variables["state"] = X[:2]
    with pytest.raises(of_opt.InputError):
        session.run({"x": X[:2]})
    with pytest.raises(of_opt.InputError):
        session.run({})
    with pytest.raises(KeyError):
        variables["x"]
    out = np.empty_like(X)
    assert session.run({"x": X}, {"y": out})["y"] is out and np.array_equal(out, -X)


@pytest.mark.parametrize("ranks", [2, 4])
def test_processes_give_the_bits_of_threads(ranks, tmp_path):
    plan = of_opt.compile(SUMS, mesh=f"cpu[{ranks}]", threads=1)
    rng = np.random.default_rng(1)
    inputs = {"x": rng.normal(size=(4, 64)).astype(np.float32), "w": rng.normal(size=(64, 8)).astype(np.float32)}
    want = of_opt.Session(plan).run(inputs)["y"]
    assert np.allclose(want, inputs["x"] @ inputs["w"], atol=1e-4)
    # A plan in memory, and one in a file, of which each rank reads its part.
    path = tmp_path / "ranks.plan"
    plan.save(path)
    for own in [plan, of_opt.Plan.load(path)]:
        session = of_opt.Session(own, ranks=ranks)
        for _ in range(3):
            assert np.array_equal(session.run_list(inputs)[0], want)


def children():
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return set(map(int, file.read().split()))


def test_processes_end_with_the_session():
    before = children()
    session = of_opt.Session(counter(), ranks=2)
    started = children() - before
    assert len(started) == 1
    session.run({"x": X})
    del session
    assert not started & children()


def test_a_lost_rank_is_an_error():
    before = children()
    session = of_opt.Session(counter(), ranks=2)
    session.run({"x": X})
    (rank,) = children() - before
    os.kill(rank, 9)
    with pytest.raises(of_opt.RunError, match=rf"rank 1 \(process {rank} on "):
        for _ in range(100):
            session.run({"x": X})
            time.sleep(0.01)
    with pytest.raises(of_opt.RunError):
        session.run({"x": X})
    # Another session has ranks of its own.
    assert np.array_equal(of_opt.Session(counter(), ranks=2).run({"x": X})["y"], -X)


def test_connections_of_processes_are_encrypted():
    session = of_opt.Session(counter(), ranks=2, tls=True)
    for step in range(1, 3):
        assert np.array_equal(session.run({"x": X})["y"], -step * X)


# A loop whose length is an input, so that a run is as long as a test needs.
LONG = b"""
func @main(%n: tensor<i64> {of.name = "n"}, %x: tensor<4x64xf32> {of.name = "x"}) -> (tensor<4x64xf32> {of.name = "y"}) {
  %none = of.none
  %y = of.loop %n, %none, %x : (tensor<i64>, none, tensor<4x64xf32>) -> tensor<4x64xf32> {
  ^(%i: tensor<i64>, %c: tensor<i1>, %s: tensor<4x64xf32>):
    %m = of.sin %s : (tensor<4x64xf32>) -> tensor<4x64xf32>
    of.yield %c, %m : (tensor<i1>, tensor<4x64xf32>) -> ()
  }
  of.return %y : (tensor<4x64xf32>) -> ()
}
"""


@pytest.mark.parametrize("how", ["signal", "cancel"])
def test_runs_of_processes_are_interrupted(how, interrupt_soon):
    before = children()
    session = of_opt.Session(of_opt.compile(LONG, mesh="cpu[2]", threads=1), ranks=2)
    started = children() - before
    x = np.ones((4, 64), np.float32)
    session.run({"n": np.int64(3), "x": x})
    # Should the signal not end the run, this does, and the test fails.
    timer = threading.Timer(60 if how == "signal" else 0.3, session.cancel)
    timer.start()
    if how == "signal":
        interrupt_soon(0.3)
    with pytest.raises(KeyboardInterrupt if how == "signal" else of_opt.CancelledError):
        session.run({"n": np.int64(1 << 40), "x": x})
    timer.cancel()
    timer.join()
    # The ranks have ended with the run.
    with pytest.raises(of_opt.CancelledError):
        session.run({"n": np.int64(3), "x": x})
    del session, timer
    assert started and not started & children()


@pytest.mark.parametrize("how", ["signal", "cancel"])
def test_runs_of_threads_are_interrupted(how, interrupt_soon):
    session = of_opt.Session(of_opt.compile(LONG, mesh="cpu[2]", threads=1))
    short, long = ({"n": np.int64(n), "x": np.ones((4, 64), np.float32)} for n in (3, 1 << 40))
    expected = session.run(short)["y"]
    for _ in range(2):
        # Should the signal not end the run, this does, and the test fails.
        timer = threading.Timer(60 if how == "signal" else 0.2, session.cancel)
        timer.start()
        if how == "signal":
            interrupt_soon(0.2)
        with pytest.raises(KeyboardInterrupt if how == "signal" else of_opt.CancelledError):
            session.run(long)
        timer.cancel()
        timer.join()
        # Unlike processes, threads run again.
        assert np.array_equal(session.run(short)["y"], expected)


def test_wrong_numbers_of_ranks_are_errors():
    plan = counter()
    with pytest.raises(of_opt.InputError, match="the plan is for 2 ranks, and 3 ranks are asked for"):
        of_opt.Session(plan, ranks=3)
    single = of_opt.compile(SUMS, threads=1)
    with pytest.raises(of_opt.InputError, match="the plan is for 1 rank, and 2 ranks are asked for"):
        of_opt.Session(single, ranks=2)
    with pytest.raises(ValueError, match="peer_timeout is a positive number of seconds"):
        of_opt.Session(plan, ranks=2, peer_timeout=0)
    first = of_opt.Session(plan)
    with pytest.raises(of_opt.InputError, match="sessions on a mesh do not share variables"):
        of_opt.Session(plan, variables=first.variables)


def test_processes_of_a_launcher_join(tmp_path):
    """As torchrun starts them: each runs the same program."""
    plan = tmp_path / "ranks.plan"
    counter().save(plan)
    program = textwrap.dedent(
        """
        import sys
        import numpy as np
        import of_opt

        x = np.arange(24, dtype=np.float32).reshape(4, 6)
        session = of_opt.Session(of_opt.Plan.load(sys.argv[1]), ranks=2)
        session.run({"x": x})
        session.variables["state"] = session.variables["state"] + 1
        print(session.run({"x": x})["y"].sum())
        """
    )
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])

    def start(rank):
        variables = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        path = os.pathsep.join(p for p in sys.path if p)
        command = [sys.executable, "-c", program, str(plan)]
        environment = {**os.environ, **variables, "PYTHONPATH": path}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    ranks = [start(rank) for rank in range(2)]
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert outputs == [f"{-(2 * X + 1).sum()}\n"] * 2


@pytest.mark.parametrize("component, launcher", [("openmpi", "mpirun.openmpi"), ("mpich", "mpirun.mpich")])
def test_processes_of_mpirun_join(component, launcher, tmp_path):
    """They need no address, may open one session after another, and end MPI when they end."""
    if shutil.which(launcher) is None:
        assert component not in os.environ.get("OF_REQUIRE", "").split(","), f"{launcher} is missing"
        pytest.skip(f"SKIPPED: {launcher} is not installed ('cargo xtask mpi')")
    plan = tmp_path / "ranks.plan"
    counter().save(plan)
    program = textwrap.dedent(
        """
        import sys
        import numpy as np
        import of_opt

        plan = of_opt.Plan.load(sys.argv[1])
        for _ in range(2):
            session = of_opt.Session(plan, ranks=2)
            session.run({"x": np.ones((4, 6), np.float32)})
            print(session.variables["state"].sum())
        """
    )
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    cores = {"OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}
    environment = {**os.environ, **root, **cores, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [launcher, "-n", "2", sys.executable, "-c", program, str(plan)]
    out = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    # Lines of both ranks may be mixed.
    assert (out.returncode, out.stdout.count("24.0")) == (0, 4), out


@pytest.mark.parametrize("ranks", [None, 2])
def test_sessions_run_the_entry_point_of_a_name(ranks):
    text = b"""
func @main(%x: tensor<?(N)x4xf32> {of.name = "x"}) -> (tensor<?(N)x4xf32> {of.name = "y"}) {
  %y = of.neg %x
  of.return %y
}
"""
    plan = of_opt.compile(text, mesh="cpu[2]", threads=1, variants=[{"N": 2}, {"N": 6}])
    for rows, name in [(2, None), (2, "N=2"), (6, "N=6")]:
        x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
        session = of_opt.Session(plan, ranks=ranks, entry_point=name)
        assert np.array_equal(session.run({"x": x})["y"], -x)
    with pytest.raises(of_opt.InputError, match="no entry point 'N=7'"):
        of_opt.Session(plan, ranks=ranks, entry_point="N=7")
