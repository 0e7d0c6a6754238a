"""`PYTHON tests/sglang/launch.py OPTIONS`: `sglang.launch_server` in the environment of envs/sglang-cpu.sh.

torchvision's kernels cannot load beside a CPU torch and SGLang imports it for its schemas only, so the schemas are
registered here first; processes that the server spawns import this file again and get them too.
"""

import os
import sys

os.environ["SGLANG_USE_CPU_ENGINE"] = "1"

import torch  # noqa: E402

_library = torch.library.Library("torchvision", "FRAGMENT")
_library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    run_server(prepare_server_args(sys.argv[1:]))
