"""An OpenAI-compatible server in the shapes of SGLang and vLLM: `python -m tests.gateway.openai_server --port N ...`.

It takes the options that `gateway.launch` gives an engine, starts worker processes as engines do (one of them leaves
the process group), and does as `--behave` says. `GET /control` tells what it was asked, with which headers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CONTEXT = 200  # tokens; one word of a prompt is one token
SEEN: dict[str, Any] = {"requests": 0, "headers": {}, "body": {}}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("positional", nargs="?")  # vLLM's model
    for name in ("--model-path", "--served-model-name", "--host", "--port", "--pids"):
        parser.add_argument(name)
    parser.add_argument("--engine", default="sglang", choices=["sglang", "sglang-0.5.14", "vllm", "strict"])
    parser.add_argument("--behave", default="well", choices=["well", "die", "hang", "busy-port"])
    parser.add_argument("--die-after", type=int, default=10**9, metavar="REQUESTS")
    parser.add_argument("--start-s", type=float, default=0.0)
    parser.add_argument("--latency-s", type=float, default=0.0)
    return parser.parse_args()


ARGS = parse()


def ids(text: str) -> list[int]:
    return [len(word) for word in text.split()]


def error(status: int, message: str, kind: str) -> tuple[int, dict[str, Any]]:
    """SGLang's error object; vLLM puts the same into an envelope."""
    body = {"object": "error", "message": message, "type": kind, "param": None, "code": status}
    return status, {"error": body} if ARGS.engine == "vllm" else body


def complete(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    prompt, answer = " ".join(m["content"] for m in body["messages"]), "it is so"
    if ARGS.engine == "strict" and any(name.startswith("return_") for name in body):
        return 400, {"error": {"message": "Unrecognized request argument supplied: return_token_ids",
                               "type": "invalid_request_error", "param": None, "code": None}}  # fmt: skip
    if ARGS.engine == "vllm" and body["model"] != ARGS.served_model_name:
        return error(404, f"The model `{body['model']}` does not exist.", "NotFoundError")
    if len(ids(prompt)) + body["max_tokens"] > CONTEXT:
        return error(
            400, "Requested token count exceeds the model's maximum context length of 200 tokens.", "BadRequest"
        )
    reasoning = {"reasoning" if ARGS.engine == "vllm" else "reasoning_content": "let me see"}
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": answer, **reasoning}}
    reply = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": body["model"], "choices": [choice]}
    reply["usage"] = {"prompt_tokens": len(ids(prompt)), "completion_tokens": 3, "total_tokens": len(ids(prompt)) + 3}
    if ARGS.engine == "vllm" and body.get("return_token_ids"):
        reply["prompt_token_ids"], choice["token_ids"] = ids(prompt), ids(answer)
    elif ARGS.engine == "sglang" and body.get("return_token_ids"):
        choice["prompt_token_ids"], choice["response_token_ids"] = ids(prompt), ids(answer)
    elif ARGS.engine == "sglang-0.5.14" and body.get("return_prompt_token_ids"):
        choice["prompt_token_ids"] = ids(prompt)
    return 200, reply


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def reply(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            entry = {"id": ARGS.served_model_name, "object": "model", "root": ARGS.model_path, "max_model_len": CONTEXT}
            self.reply(200, {"object": "list", "data": [entry]})
        elif self.path == "/health":
            self.reply(200, {})
        else:
            self.reply(*((200, SEEN) if self.path == "/control" else (404, {"detail": "Not Found"})))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        SEEN["requests"] += 1
        SEEN["body"], SEEN["headers"] = body, {k.lower(): v for k, v in self.headers.items()}
        if SEEN["requests"] > ARGS.die_after:
            print("Scheduler hit an exception: out of memory", flush=True)
            os._exit(9)
        time.sleep(ARGS.latency_s)
        self.reply(*complete(body))


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


def main() -> None:
    print(f"loading {ARGS.model_path or ARGS.positional}", flush=True)
    if ARGS.behave == "die":
        sys.exit("RuntimeError: the weights do not fit")
    if ARGS.behave == "busy-port" and not os.path.exists(ARGS.pids):
        open(ARGS.pids, "w").close()
        sys.exit("OSError: [Errno 98] Address already in use")
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    workers = [subprocess.Popen(sleep), subprocess.Popen(sleep, start_new_session=True)]
    if ARGS.pids:
        with open(ARGS.pids, "w") as file:
            json.dump([os.getpid(), *(worker.pid for worker in workers)], file)
    if ARGS.behave == "hang":
        time.sleep(600)
    time.sleep(ARGS.start_s)
    server = Server((ARGS.host, int(ARGS.port)), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps({"port": server.server_address[1]}), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
