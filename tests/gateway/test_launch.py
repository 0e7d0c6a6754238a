"""A server that a job starts: it answers before the job goes on, says why it does not, and never outlives the job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from eyrie.errors import ExitCode, EyrieError, InputError
from eyrie.gateway.keeper import descendants
from eyrie.gateway.launch import Launch, launched

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "tests.gateway.openai_server"]


def plan(ready_s: float = 120.0, **args: object) -> Launch:
    found = Launch.read({"engine": "sglang", "command": COMMAND, "args": args, "ready_s": ready_s})
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def pids(path: Path) -> list[int]:
    """The server's processes, once it has written them."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if path.exists() and path.read_text():
            return json.loads(path.read_text())
        time.sleep(0.02)
    raise AssertionError(f"{path} was not written")


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def wait_until_gone(processes: list[int]) -> None:
    deadline = time.monotonic() + 10
    while left := [pid for pid in processes if alive(pid)]:
        assert time.monotonic() < deadline, f"{left} outlived the job"
        time.sleep(0.02)


def test_it_answers_when_the_context_begins_and_all_its_processes_are_gone_after_it(tmp_path: Path) -> None:
    said: list[str] = []
    log = tmp_path / "logs" / "server.log"
    options = {"pids": str(tmp_path / "pids"), "start_s": 0.3}
    with launched(plan(**options), "/models/m", "m", log, said.append) as server:
        entry = httpx.get(f"{server.url}/models", trust_env=False).json()["data"][0]
        assert entry["id"] == "m" and entry["root"] == "/models/m"
        assert server.problem() is None
        running = pids(tmp_path / "pids")
        assert len(running) == 3 and all(map(alive, running))
    assert not [pid for pid in running if alive(pid)]  # the one that left the process group, too
    assert "--start-s 0.3" in log.read_text() and "loading /models/m" in log.read_text()
    assert "starting sglang" in said[0] and server.url in said[-1]


def test_one_that_dies_at_start_gives_its_last_lines(tmp_path: Path) -> None:
    with pytest.raises(EyrieError) as error, launched(plan(behave="die"), "/m", "m", tmp_path / "log", print):
        raise AssertionError("it never answered")
    assert error.value.code is ExitCode.MISSING
    assert "the weights do not fit" in str(error.value) and str(tmp_path / "log") in str(error.value)


def test_one_that_cannot_be_started_says_so(tmp_path: Path) -> None:
    nothing = Launch("vllm", ("/no/such/vllm", "serve"), {}, 10.0)
    with pytest.raises(EyrieError, match="/no/such/vllm: cannot be started: No such file"):  # noqa: SIM117
        with launched(nothing, "/m", "m", tmp_path / "log", print):
            raise AssertionError("it never answered")


def test_one_that_does_not_answer_in_time_is_stopped(tmp_path: Path) -> None:
    slow = plan(ready_s=1.5, behave="hang", pids=str(tmp_path / "pids"))
    with pytest.raises(EyrieError, match="did not answer within gateway.launch.ready_s=1.5 s"):  # noqa: SIM117
        with launched(slow, "/m", "m", tmp_path / "log", print):
            raise AssertionError("it never answered")
    assert not [pid for pid in pids(tmp_path / "pids") if alive(pid)]


def test_the_wait_shows_how_far_the_server_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eyrie.gateway.launch.SAY_EVERY_S", 0.5)
    said: list[str] = []
    with launched(plan(start_s=1.5), "/models/m", "m", tmp_path / "log", said.append):
        pass
    assert any("of at most 120 s" in line and "loading /models/m" in line for line in said)


def test_a_port_that_was_taken_meanwhile_is_given_up_for_another(tmp_path: Path) -> None:
    said: list[str] = []
    taken = plan(behave="busy-port", pids=str(tmp_path / "pids"))
    with launched(taken, "/m", "m", tmp_path / "log", said.append) as server:
        assert httpx.get(f"{server.url}/models", trust_env=False).status_code == 200
    assert any("trying another" in line for line in said)


def test_a_server_that_ends_later_is_a_problem_with_its_last_words(tmp_path: Path) -> None:
    with launched(plan(die_after=0), "/m", "m", tmp_path / "log", print) as server:
        with pytest.raises(httpx.HTTPError):
            httpx.post(f"{server.url}/chat/completions", json={}, trust_env=False)
        deadline = time.monotonic() + 10
        while server.problem() is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert "exit code 9" in str(server.problem()) and "out of memory" in str(server.problem())


HOLDER = """
import sys, time
from pathlib import Path
from tests.gateway.test_launch import plan
from eyrie.gateway.launch import launched
with launched(plan(pids=sys.argv[1]), "/m", "m", Path(sys.argv[1] + ".log"), print) as server:
    print(server.process.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path):
    """A process that holds a server: (the process, its keeper's pid, the server's pids)."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "pids")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    keeper = next((int(line) for line in lines if line.strip().isdigit()), 0)
    assert keeper, "the holder did not start its server"
    yield process, keeper, pids(tmp_path / "pids")
    process.kill()
    process.wait()
    process.stdout.close()


def test_kill_nine_of_the_job_takes_every_process_of_the_server_with_it(holder) -> None:
    process, keeper, running = holder
    assert all(map(alive, running))
    process.kill()
    wait_until_gone([keeper, *running])


def test_ctrl_c_meant_for_the_job_does_not_reach_the_server(holder) -> None:
    process, keeper, running = holder
    assert os.getpgid(running[0]) != os.getpgid(process.pid) and os.getsid(keeper) != os.getsid(process.pid)
    process.send_signal(signal.SIGINT)
    wait_until_gone([keeper, *running])  # the context ended, and with it the server


def test_kill_nine_of_the_keeper_takes_the_server_with_it(holder) -> None:
    _, keeper, running = holder
    os.kill(keeper, signal.SIGKILL)
    wait_until_gone(running[:1])
    for pid in running[1:]:  # workers of a server killed from outside are their engine's to watch
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("name", ["port", "host", "model_path", "served-model-name", "--api-key"])
def test_options_that_the_job_sets_itself_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="is set by the job"):
        plan(**{name: "x"})


def test_options_become_words_in_the_order_given() -> None:
    words = plan(tp_size=8, trust_remote_code=True, quiet=False, none=None, cuda_graph_bs=[1, 2]).argv("/m", "m", 7)
    assert words[-8:] == ["--port", "7", "--tp-size", "8", "--trust-remote-code", "--cuda-graph-bs", "1", "2"]
    vllm = Launch("vllm", (), {"max-model-len": 10}, 1.0).argv("/m", "m", 7)
    assert vllm[:3] == ["vllm", "serve", "/m"] and vllm[-2:] == ["--max-model-len", "10"]


HALF_ENDED = """
import ctypes, platform, subprocess, sys, threading, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
threading.Thread(target=time.sleep, args=(60,)).start()
print(child.pid, flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)  # exit of this thread only
"""


def test_children_of_a_process_whose_first_thread_has_ended_are_found() -> None:
    """It shows as a zombie, and its children are not handed to the keeper before its other threads end too."""
    process = subprocess.Popen([sys.executable, "-c", HALF_ENDED], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        deadline = time.monotonic() + 10
        while alive(process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        found = descendants(os.getpid())
        assert child in found and process.pid not in found
    finally:
        os.kill(child, signal.SIGKILL)
        process.kill()
        process.wait()
