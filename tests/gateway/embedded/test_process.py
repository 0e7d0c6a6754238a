"""The embedded server's process."""

from __future__ import annotations

from pathlib import Path

from eyrie.gateway import key
from eyrie.gateway.embedded import serve


def test_a_key_in_the_jobs_environment_never_reaches_the_server(tiny_target, monkeypatch):
    monkeypatch.setenv(key.VARIABLE, "canary-value")
    with serve(tiny_target, catalogue_only=True):
        children = [int(pid) for pid in Path("/proc/thread-self/children").read_text().split()]
        environments = [Path(f"/proc/{pid}/environ").read_bytes() for pid in children]
    assert any(b"PATH=" in environment for environment in environments)
    assert not any(b"canary-value" in environment for environment in environments)
