"""The embedded server over real HTTP: OpenRouter's shapes, truth about endings, bad clients, no orphans."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import trio

from eyrie.errors import EyrieError, InputError
from eyrie.gateway.embedded import serve
from eyrie.gateway.reply import assistant_message, token_ids
from eyrie.gateway.stream import read_body

MODEL = "embedded/tiny-llama"


@pytest.fixture(scope="module")
def client(server):
    with httpx.Client(base_url=server, timeout=60) as one:
        yield one


def body(text="hello", **more):
    return {
        "model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 8, "temperature": 0,
        "return_token_ids": True, **more,
    }  # fmt: skip


def ask(client, *args, **more):
    reply = client.post("/chat/completions", json=body(*args, **more))
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_catalogue_has_the_documented_shapes(client):
    model = client.get("/models").json()["data"][0]
    assert model["id"] == MODEL and model["context_length"] == 512
    assert {"architecture", "pricing", "top_provider", "supported_parameters", "expiration_date"} <= set(model)
    endpoint = client.get(f"/models/{MODEL}/endpoints").json()["data"]["endpoints"][0]
    assert endpoint["provider_name"] == "Embedded" and endpoint["quantization"] == "fp32" and endpoint["status"] == 0
    assert endpoint["pricing"]["prompt"] == endpoint["pricing"]["completion"] == "0"
    assert {"seed", "stop", "temperature", "max_tokens"} <= set(endpoint["supported_parameters"])
    assert client.get("/key").json()["data"]["limit"] is None


def test_completion_has_openrouters_shape(client):
    reply = client.post("/chat/completions", json=body(seed=3))
    value = reply.json()
    assert reply.headers["x-generation-id"] == value["id"] and value["id"].startswith("gen-")
    assert value["object"] == "chat.completion" and value["provider"] == "Embedded" and value["model"] == MODEL
    choice = value["choices"][0]
    assert choice["message"]["role"] == "assistant" and isinstance(choice["message"]["content"], str)
    assert choice["finish_reason"] == choice["native_finish_reason"]
    assert value["usage"]["cost"] == 0
    assert value["usage"]["prompt_tokens"] == len(value["prompt_token_ids"])
    assert value["usage"]["completion_tokens"] == len(choice["token_ids"])
    assert value["usage"]["total_tokens"] == len(value["prompt_token_ids"]) + len(choice["token_ids"])


def test_token_ids_come_only_when_asked_for(client):
    value = client.post("/chat/completions", json={**body(), "return_token_ids": False}).json()
    assert "prompt_token_ids" not in value and "token_ids" not in value["choices"][0]


def test_prompt_is_rendered_as_the_tokenize_stage_does(client, tiny_target):
    from eyrie.chat import render_prompt
    from eyrie.target import load_receipt, load_tokenizer

    tokenizer = load_tokenizer(load_receipt(tiny_target))
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "naïve 12?"}]
    value = ask(client, messages=messages)
    assert value["prompt_token_ids"] == render_prompt(tokenizer, messages)


def test_finish_reason_is_true(client):
    """Sampled texts of many seeds: each says length at exactly max_tokens, or stop behind an end token."""
    with ThreadPoolExecutor(8) as pool:
        values = list(pool.map(lambda seed: ask(client, temperature=1.5, seed=seed, max_tokens=30), range(48)))
    reasons = set()
    for value in values:
        ids, reason = value["choices"][0]["token_ids"], value["choices"][0]["finish_reason"]
        assert reason == ("stop" if ids[-1] == 2 else "length")
        assert 2 not in ids[:-1] and (reason == "stop" or len(ids) == 30)
        reasons.add(reason)
    assert reasons == {"stop", "length"}


def test_stop_strings_end_the_answer_before_them(client):
    free = ask(client, temperature=1.0, seed=5, max_tokens=40)["choices"][0]
    stop = free["message"]["content"][6:8]
    cut = ask(client, temperature=1.0, seed=5, max_tokens=40, stop=stop)["choices"][0]
    assert cut["finish_reason"] == "stop"
    assert cut["message"]["content"] == free["message"]["content"].split(stop)[0]
    assert len(cut["token_ids"]) < len(free["token_ids"])


def test_same_request_gives_the_same_reply_in_any_company(client):
    requests = [body(f"question {i}", temperature=0.9 * (i % 2), seed=i, max_tokens=20) for i in range(24)]
    with ThreadPoolExecutor(24) as pool:
        crowd = list(pool.map(lambda r: client.post("/chat/completions", json=r).json(), requests))
    for request, first in list(zip(requests, crowd, strict=True))[:8]:
        alone = client.post("/chat/completions", json=request).json()
        assert {**alone, "created": 0} == {**first, "created": 0}
    assert len({reply["id"] for reply in crowd}) == 24


def test_seed_and_temperature_matter(client):
    texts = {ask(client, temperature=1.0, seed=seed)["choices"][0]["message"]["content"] for seed in range(6)}
    assert len(texts) > 3
    unseeded = [ask(client, temperature=1.0)["choices"] for _ in range(2)]
    assert unseeded[0] == unseeded[1]  # the seed is a hash of the request then


def events(client, request):
    with client.stream("POST", "/chat/completions", json={**request, "stream": True}) as reply:
        assert reply.headers["content-type"] == "text/event-stream"
        lines = [line for line in reply.read().decode().split("\n") if line]
    assert lines[-1] == "data: [DONE]"
    return reply.headers["x-generation-id"], [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@pytest.mark.parametrize("more", [{}, {"stop": ["e", "q"]}, {"seed": 9, "temperature": 1.0}])
def test_stream_joins_to_the_whole_reply(client, more):
    request = body("tell me", max_tokens=40, **more)
    whole = client.post("/chat/completions", json=request).json()
    generation, chunks = events(client, request)
    choices = [chunk["choices"][0] for chunk in chunks[:-1]]
    assert all(chunk["id"] == generation and chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    assert choices[0]["delta"]["role"] == "assistant"
    assert "".join(c["delta"]["content"] for c in choices) == whole["choices"][0]["message"]["content"]
    assert sum((c["token_ids"] for c in choices), []) == whole["choices"][0]["token_ids"]
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert [c["finish_reason"] for c in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole["usage"]


def test_what_the_client_assembles_from_a_stream_is_the_whole_reply(client):
    request = body("tell me", max_tokens=40, seed=3)
    whole = client.post("/chat/completions", json=request).json()

    async def read():
        async with httpx.AsyncClient(base_url=client.base_url, timeout=60, trust_env=False) as streaming:
            async with streaming.stream("POST", "/chat/completions", json={**request, "stream": True}) as response:
                return await read_body(response)

    assembled = trio.run(read)
    streamed = json.loads(assembled.raw)
    assert assembled.problem is None
    assert assistant_message(streamed) == assistant_message(whole) and token_ids(streamed) == token_ids(whole)
    for key in ("model", "provider", "usage"):
        assert streamed[key] == whole[key]


def test_generation_can_be_looked_up(client):
    value = ask(client, "look me up")
    data = client.get("/generation", params={"id": value["id"]}).json()["data"]
    assert data["total_cost"] == 0 and data["provider_name"] == "Embedded"
    assert data["native_tokens_completion"] == value["usage"]["completion_tokens"]
    missing = client.get("/generation", params={"id": "gen-none"})
    assert missing.status_code == 404 and missing.json()["error"]["code"] == 404


@pytest.mark.parametrize(
    ("change", "status", "named"),
    [
        ({"model": "other/model"}, 404, "other/model"),
        ({"messages": []}, 400, "messages"),
        ({"messages": "hi"}, 400, "messages"),
        ({"messages": [{"content": "hi"}]}, 400, "messages[0]"),
        ({"messages": [{"role": "user", "content": {"a": 1}}]}, 400, "messages"),
        ({"temperature": 3}, 400, "temperature"),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"top_p": 0}, 400, "top_p"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"max_tokens": 1.5}, 400, "max_tokens"),
        ({"seed": True}, 400, "seed"),
        ({"stop": ["a", "b", "c", "d", "e"]}, 400, "stop"),
        ({"stop": [""]}, 400, "stop"),
        ({"n": 2}, 400, "n must be 1"),
        ({"tools": {}}, 400, "tools"),
        ({"max_tokens": 510}, 400, "maximum context length is 512"),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, 400, "maximum context length"),
    ],
)
def test_bad_requests_get_openrouters_error_envelope(client, change, status, named):
    reply = client.post("/chat/completions", json={**body(), **change})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (status, status), reply.text
    assert named in error["message"]
    long = "maximum context" in named
    assert (error["metadata"]["error_type"] == "context_length_exceeded") == long


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b'{"model": NaN}', b"\xff\xfe", b"[" * 100_000])
def test_bodies_that_are_no_json_object_are_refused(client, raw):
    reply = client.post("/chat/completions", content=raw)
    assert reply.status_code in (400, 404) and reply.json()["error"]["message"]


def test_huge_body_is_refused(client):
    reply = client.post("/chat/completions", content=b" " * (9 << 20))
    assert reply.status_code == 413


def test_wrong_method_and_path(client):
    assert client.get("/chat/completions").status_code == 405
    assert client.post("/models").status_code == 405
    assert client.get("/nothing").status_code == 404


def address(url):
    host, port = url.split("/")[2].split(":")
    return host, int(port)


def test_no_http_is_answered_and_closed(server):
    with socket.create_connection(address(server), timeout=10) as raw:
        raw.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert raw.recv(4096).startswith(b"HTTP/1.1 4")
        assert raw.recv(4096) == b""


def test_client_that_leaves_frees_its_row(server, client):
    """Eight long answers take every row; when their clients vanish, a short one is served at once."""
    long = json.dumps(body("long", max_tokens=480, temperature=1.9, top_k=200)).encode()
    head = b"POST /api/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(long)
    open_ones = [socket.create_connection(address(server), timeout=10) for _ in range(24)]
    for one in open_ones:
        one.sendall(head + long)
    for one in open_ones:
        one.close()
    assert ask(client, "short", max_tokens=2)["choices"][0]["finish_reason"]


def test_requests_on_one_connection_are_answered_in_order(server):
    """Two requests sent at once (pipelined) on one connection."""
    data = [json.dumps(body(f"number {i}")).encode() for i in range(2)]
    head = "POST /api/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n"
    with socket.create_connection(address(server), timeout=30) as raw:
        raw.sendall(b"".join(head.format(len(d)).encode() + d for d in data))
        raw.settimeout(30)
        found = b""
        while found.count(b'"object":"chat.completion"') < 2:
            piece = raw.recv(65536)
            assert piece
            found += piece
    assert found.count(b"HTTP/1.1 200") == 2


def test_many_connections_at_once(server):
    with (
        ThreadPoolExecutor(128) as pool,
        httpx.Client(base_url=server, timeout=120, limits=httpx.Limits(max_connections=128)) as client,
    ):
        found = list(pool.map(lambda i: ask(client, f"q{i}", max_tokens=3)["usage"]["completion_tokens"], range(256)))
    assert len(found) == 256 and max(found) <= 3


def running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


def gone_within(pid, seconds):
    deadline = time.monotonic() + seconds
    while running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not running(pid)


def start(tiny_target, *more, stdin=subprocess.PIPE):
    child = subprocess.Popen(
        [sys.executable, "-m", "eyrie", "gateway", "--target", tiny_target, "--catalogue-only", *more],
        stdin=stdin, stdout=subprocess.PIPE,
    )  # fmt: skip
    return child, json.loads(child.stdout.readline())


def test_server_ends_when_its_stdin_closes(tiny_target):
    child, _ = start(tiny_target, "--until-stdin-closes")
    child.send_signal(signal.SIGINT)  # meant for the job that owns it
    time.sleep(0.2)
    assert child.poll() is None
    child.stdin.close()
    assert child.wait(15) == 0


def test_server_ends_on_sigterm_and_needs_no_stdin(tiny_target):
    child, ready = start(tiny_target, stdin=subprocess.DEVNULL)
    assert httpx.get(ready["base_url"] + "/models").status_code == 200
    child.send_signal(signal.SIGTERM)
    assert child.wait(15) == 0


def test_server_dies_with_a_killed_parent(tiny_target):
    script = (
        "import sys, time, httpx\nfrom eyrie.gateway.embedded import serve\n"
        "with serve(sys.argv[1], catalogue_only=True, threads=1) as url:\n"
        "    print(url, flush=True)\n    time.sleep(100)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, tiny_target], stdout=subprocess.PIPE, text=True)
    url = parent.stdout.readline().strip()
    children = open(f"/proc/{parent.pid}/task/{parent.pid}/children").read().split()
    assert len(children) == 1 and httpx.get(url + "/models").status_code == 200
    parent.kill()
    parent.wait()
    assert gone_within(int(children[0]), 15)


def test_catalogue_needs_no_torch_and_refuses_completions(tiny_target, tmp_path):
    log = tmp_path / "gateway.log"
    with serve(tiny_target, width=4, threads=1, catalogue_only=True, log_path=log) as url:
        assert httpx.get(url + "/models").status_code == 200
        assert httpx.post(url + "/chat/completions", json=body()).status_code == 503
    with pytest.raises(httpx.ConnectError):
        httpx.get(url + "/models")
    assert log.read_text() == ""
    code = (
        "import sys; import eyrie.gateway.embedded.command, eyrie.gateway.embedded.server, eyrie.target.command;"
        "assert not {'torch', 'transformers', 'snakemake'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unsupported_architecture_is_said_by_the_job(tiny_target, tmp_path):
    from pathlib import Path

    receipt = json.loads(Path(tiny_target).read_text())
    folder = tmp_path / "model"
    folder.mkdir()
    for path in Path(receipt["path"]).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["Qwen3ForCausalLM"]}))
    (tmp_path / "target.json").write_text(json.dumps({**receipt, "path": str(folder)}))
    with pytest.raises(EyrieError, match="Qwen3ForCausalLM.*gateway=openai") as error:
        with serve(tmp_path / "target.json", threads=1):
            pass
    assert error.value.code == InputError.code


def test_missing_receipt_is_said_by_the_job(tmp_path):
    with pytest.raises(EyrieError, match="no such file"):
        with serve(tmp_path / "target.json", threads=1):
            pass
