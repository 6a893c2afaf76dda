"""ST-GCN forward and backward, of one client and of several with weights of their own, as tasks/skeleton/by_joint.py
has them for a device (on GPUs by Triton's kernels), against convolutions as a stacked step has them else.

    python bench/skeleton_kernels.py                  # on a GPU, as a recorded step has it: in a graph
    python bench/skeleton_kernels.py --device cpu --clients 1 4

Width 16 with 128 features, 16 sequences of 50 frames and 20 joints a client, random weights and sequences; TF32 on
GPUs, for both. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from fedreel.core.batchnorm import statistics_kept
from fedreel.engines.stacked.step import ChannelsApart
from fedreel.machine.device import pick_device
from fedreel.tasks.skeleton import stgcn
from fedreel.tasks.skeleton.joints import find_joints
from fedreel.tasks.skeleton.network import Skeleton
from fedreel.tasks.skeleton.stgcn import STGCN, STGCNConfig
from loops import now

BATCH, FRAMES, TIMES = 16, 50, 30


def step_of(clients: int, device: torch.device) -> Callable[[], dict[str, Tensor]]:
    """Gradients of all clients' weights at their own batches."""
    joints = find_joints("kinect-v1")
    skeleton = Skeleton(len(joints.names), joints.bones, joints.centre)
    torch.manual_seed(0)
    config = STGCNConfig(width=16, features=128, topology="learnable")
    networks = [STGCN(config, skeleton).to(device) for _ in range(clients)]
    named = [{n: p.detach() for n, p in network.named_parameters()} for network in networks]
    weights = {name: torch.stack([own[name] for own in named]) for name in named[0]}
    batches = torch.randn(clients, BATCH, 3, FRAMES, skeleton.joints, 1, device=device)

    def loss(weights: dict[str, Tensor], batch: Tensor) -> Tensor:
        with statistics_kept(networks[0]):
            found: Tensor = functional_call(networks[0], weights, (batch,))
        return found.square().mean()

    def step() -> dict[str, Tensor]:
        with ChannelsApart():
            found: dict[str, Tensor] = vmap(grad(loss))(weights, batches)
        return found

    return step


def milliseconds(step: Callable[[], Any], device: torch.device) -> float:
    if device.type == "cuda":
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            step(), step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        step = graph.replay
    step()
    times = TIMES if device.type == "cuda" else 3
    began = now(device.type)
    for _ in range(times):
        step()
    return 1000 * (now(device.type) - began) / times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 20])
    arguments = parser.parse_args()
    device = pick_device(arguments.device)
    result = {}
    for clients in arguments.clients:
        step = step_of(clients, device)
        own = milliseconds(step, device)
        with patch.object(stgcn, "pays", lambda conv, x: False):
            plain = milliseconds(step, device)
        text = f"{clients} clients: {own:.2f} ms, by PyTorch's convolutions {plain:.2f} ms, {plain / own:.2f} times"
        print(text, flush=True)
        result[clients] = {"ms": own, "plain_ms": plain, "ratio": plain / own}
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    print(json.dumps({"bench": "skeleton_kernels", "clients": result, "device": name}))


if __name__ == "__main__":
    main()
