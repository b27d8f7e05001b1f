"""Chorus as a backend of torch.distributed.

    import chorus_torch
    torch.distributed.init_process_group("chorus")

Where the package was installed by pip, torch 2.5 and later need no import. Importing registers the backend "chorus" for CPU tensors and, where it was built for a torch with CUDA, for
CUDA tensors; and the rendezvous "chorus://", for jobs started by mpirun, srun or
`chorus run` in place of torchrun:

    torch.distributed.init_process_group("chorus", init_method="chorus://")
"""

import atexit
import os
import socket
import sys
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist

from ._built_for import torch_version

# Before loading what was built for another torch, which would bring that one's libraries.
if torch.__version__.split("+")[0].split(".")[:2] != torch_version.split("+")[0].split(".")[:2]:
    raise ImportError(
        f"chorus_torch was built for torch {torch_version}, but this is {torch.__version__}: "
        "build it again (docs/pytorch.md)"
    )
from . import _C

__all__ = ["monitored_barrier"]


def _own_address():
    """This host's address on the way to MASTER_ADDR, or "" (loopback) where that is unknown."""
    master = os.environ.get("MASTER_ADDR")
    if not master:
        return ""
    try:
        family, kind, _, _, address = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing
            return probe.getsockname()[0]
    except OSError:
        return ""


def _create(store, rank, size, timeout, name="", global_ranks=(), backend="chorus"):
    return _C.create(store, rank, size, timeout, _own_address(), backend, name, list(global_ranks))


def _create_of_torch_2(group, _, backend="chorus"):
    return _create(group.store, group.group_rank, group.group_size, group.timeout, group.group_id,
                   group.global_ranks_in_group, backend)


def _rendezvous(url, timeout=timedelta(minutes=30), **_):
    """Yields (store, rank, world_size) of a job of mpirun, srun or `chorus run`."""
    job = _C.launch()
    rank, size = job["rank"], job["world_size"]
    os.environ.setdefault("LOCAL_RANK", str(job["local_rank"]))
    one_host = size == 1 or job["local_world_size"] == size
    if rank == 0:
        host = "127.0.0.1" if one_host else _route_address()
        store = dist.TCPStore(host, 0, size, True, timeout, wait_for_workers=False)
        _C.from_rank_0(f"{host} {store.port}")
    else:
        host, port = _C.from_rank_0("").rsplit(" ", 1)
        store = dist.TCPStore(host, int(port), size, False, timeout)
    os.environ.setdefault("MASTER_ADDR", host)
    yield store, rank, size


def _route_address():
    """The address of the interface with the default route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        return probe.getsockname()[0]


def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """torch.distributed.monitored_barrier, which some versions of torch allow to Gloo alone: raises on
    every rank that came, naming those that did not come within `timeout` (a timedelta; None: that of
    the group)."""
    group = dist.group.WORLD if group is None else group
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        warnings.warn(f"monitored_barrier: rank {dist.get_rank()} is not in the group, so it does nothing")
        return
    if hasattr(group, "_get_backend"):
        group = group._get_backend(torch.device("cpu"))
    _C.monitored_barrier(group, timeout, wait_all_ranks)


def _leave():
    error = getattr(sys, "last_value", None)
    reason = ""
    if error is not None:  # what ended this process is what the others should read
        reason = f"this process ended with {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    _C.leave_all(reason)


def _register():
    from torch.distributed.rendezvous import register_rendezvous_handler

    if "CHORUS" in dist.Backend._plugins:  # by _chorus_torch_autoload, in our name
        return
    if int(torch.__version__.split(".")[0]) >= 2:
        dist.Backend.register_backend(
            "chorus", _create_of_torch_2, extended_api=True, devices=["cpu", "cuda"]
        )
    else:
        dist.Backend.register_backend("chorus", _create)
    register_rendezvous_handler("chorus", _rendezvous)


_register()
if os.environ.get("CHORUS_AS_GLOO", "0") not in ("", "0"):
    from ._as_gloo import install

    install(_create, _create_of_torch_2)
atexit.register(_leave)
