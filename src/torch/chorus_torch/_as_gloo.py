"""CHORUS_AS_GLOO=1: who asks torch for "gloo" gets Chorus, for code in which that word is fixed."""

import torch.distributed as dist
from torch.distributed import distributed_c10d


def install(create, create_of_torch_2):
    """Groups that are made from now on as "gloo" are made by `create` (or, where torch describes a
    group as a whole, by `create_of_torch_2`), which are told that this is their name."""
    plugins = dist.Backend._plugins
    if hasattr(dist.Backend, "_ensure_backend_registered"):
        # torch that makes its own backends as it makes those of others
        dist.Backend._ensure_backend_registered("gloo")
        make = lambda group, _: create_of_torch_2(group, _, backend="gloo")
        plugins["GLOO"] = plugins["GLOO"]._replace(creator_fn=make, extended_api=True)
        return

    gloo, wrap = distributed_c10d.ProcessGroupGloo, distributed_c10d._create_process_group_wrapper

    class ProcessGroupGloo:
        def __new__(cls, store, rank, size, timeout):
            return create(store, rank, size, timeout, backend="gloo")

    def wrap_with_gloo(*arguments, **names):  # TORCH_DISTRIBUTED_DEBUG=DETAIL compares calls through Gloo
        distributed_c10d.ProcessGroupGloo = gloo
        try:
            return wrap(*arguments, **names)
        finally:
            distributed_c10d.ProcessGroupGloo = ProcessGroupGloo

    distributed_c10d.ProcessGroupGloo = ProcessGroupGloo
    distributed_c10d._create_process_group_wrapper = wrap_with_gloo
