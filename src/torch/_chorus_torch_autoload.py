"""What torch runs of an installed chorus_torch by itself; here, so that `import torch` loads no more."""

import os


def _register_later():
    """The backend and the rendezvous without an import, of which nothing is loaded before somebody
    asks for one of them."""
    import torch.distributed as dist

    if not dist.is_available() or "CHORUS" in dist.Backend._plugins:
        return
    from torch.distributed.rendezvous import register_rendezvous_handler

    def create(group, options):
        import chorus_torch

        return chorus_torch._create_of_torch_2(group, options)

    def rendezvous(url, **options):
        import chorus_torch

        return chorus_torch._rendezvous(url, **options)

    dist.Backend.register_backend("chorus", create, extended_api=True, devices=["cpu", "cuda"])
    register_rendezvous_handler("chorus", rendezvous)


def with_torch():
    """Called by `import torch` (entry point torch.backends)."""
    if os.environ.get("CHORUS_AS_GLOO", "0") not in ("", "0"):
        import chorus_torch  # noqa: F401: it takes Gloo's place now
    else:
        _register_later()


def by_name():
    """Called by torch.distributed where a group asks for "chorus" (entry point
    torch.distributed.backends)."""
    import chorus_torch  # noqa: F401: it registers itself
