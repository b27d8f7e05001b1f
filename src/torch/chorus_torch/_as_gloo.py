"""CHORUS_AS_GLOO=1: who asks torch for "gloo" gets Chorus, for code in which that word is fixed.

Within torch the group keeps a name and a type of its own: DistributedDataParallel's log takes an object
that says it is Gloo's for one, and reads what only that has.
"""

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d


def install(create, create_of_torch_2):
    """Groups that are made from now on as "gloo" are made by `create` (or, where torch describes a
    group as a whole, by `create_of_torch_2`), which are told that this is their name."""
    if hasattr(dist.Backend, "_ensure_backend_registered"):
        _install_as_plugin(create_of_torch_2)
    elif torch.__version__.startswith("1."):
        _install_as_class(create)
    else:
        raise ImportError(
            f"CHORUS_AS_GLOO=1 works with torch 1.13 and 2.15; torch {torch.__version__} would take Chorus's groups "
            'for objects of Gloo\'s. Unset it, and call init_process_group("chorus") before what asks for "gloo"'
        )


def _install_as_plugin(create):
    """torch that makes its own backends as it makes those of others."""
    dist.Backend._ensure_backend_registered("gloo")
    make = lambda group, options: create(group, options, backend="gloo")
    plugins = dist.Backend._plugins
    plugins["GLOO"] = plugins["GLOO"]._replace(creator_fn=make, extended_api=True)
    dist.Backend.backend_type_map["gloo"] = dist.ProcessGroup.BackendType.CUSTOM


def _install_as_class(create):
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
