"""GPU tensors for a test: torch's own, or tensors of the CPU in memory of the fake driver (where the
package chorus_torch is the one built for that)."""

import contextlib
import ctypes
import sys

import torch

import chorus_torch

DELAY_S = 0.05  # of delay(), about


class Torchs:
    """torch.cuda."""

    count = property(lambda self: torch.cuda.device_count())

    def put(self, tensor, gpu=0):
        return tensor.to(f"cuda:{gpu}")

    def read(self, tensor):
        """A copy on the CPU, in the order of the current stream."""
        return tensor.cpu()

    def copy(self, to, source):
        """Enqueued on the current stream."""
        to.copy_(source)

    @contextlib.contextmanager
    def stream(self, gpu=0):
        """A new current stream."""
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream(gpu)):
            yield

    def delay(self, gpu=0):
        """Keeps the current stream busy."""
        with torch.cuda.device(gpu):
            torch.cuda._sleep(int(DELAY_S * 1.5e9))

    def hold(self, held, gpu=0):
        """Kernels of collectives wait until released; False where that cannot be had."""
        return False


class Fakes:
    """The fake driver's."""

    count = 2

    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.module = ctypes.CDLL(chorus_torch._C.__file__)
        self.module.fake_gpu_allocate.restype = ctypes.c_void_p
        self.current = ctypes.c_void_p()
        self.gpu = 0
        self.bulk = None

    @contextlib.contextmanager
    def context(self):
        """The driver refuses calls of a thread that has no context."""
        context = ctypes.c_void_p()
        assert self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), self.gpu) == 0
        assert self.driver.cuCtxPushCurrent_v2(context) == 0
        try:
            yield
        finally:
            assert self.driver.cuCtxPopCurrent_v2(ctypes.byref(context)) == 0

    def put(self, tensor, gpu=0):
        bytes_ = max(1, tensor.numel()) * tensor.element_size()
        address = self.module.fake_gpu_allocate(gpu, ctypes.c_size_t(bytes_))
        memory = (ctypes.c_char * bytes_).from_address(address)
        # Never of no elements: torch would forget where.
        room = torch.frombuffer(memory, dtype=tensor.dtype, count=max(1, tensor.numel()))
        placed = room[: tensor.numel()].view(tensor.shape)
        placed.copy_(tensor)  # nothing uses the memory yet
        return placed

    def read(self, tensor):
        with self.context():
            assert self.driver.cuStreamSynchronize(self.current) == 0
        return tensor.clone()

    def copy(self, to, source):
        with self.context():
            assert self.driver.cuMemcpyDtoDAsync_v2(
                ctypes.c_ulonglong(to.data_ptr()), ctypes.c_ulonglong(source.data_ptr()),
                ctypes.c_size_t(to.numel() * to.element_size()), self.current) == 0

    @contextlib.contextmanager
    def stream(self, gpu=0):
        before = self.current
        self.current = ctypes.c_void_p()
        self.gpu = gpu
        with self.context():
            assert self.driver.cuStreamCreate(ctypes.byref(self.current), 1) == 0
        self.module.fake_gpu_use_stream(self.current)
        yield
        self.current = before
        self.module.fake_gpu_use_stream(before)

    def delay(self, gpu=0):
        if self.bulk is None:
            self.bulk = [self.put(torch.zeros(1 << 23), gpu) for _ in range(2)]  # 32 MiB
        for _ in range(5):
            self.copy(*self.bulk)

    def hold(self, held, gpu=0):
        self.driver._ZN6chorus7testing14fake_cuda_holdEib(gpu, held)
        return True


def gpus():
    """Of this machine, or None with the reason."""
    if hasattr(ctypes.CDLL(chorus_torch._C.__file__), "fake_gpu_allocate"):
        return Fakes(), ""
    if not chorus_torch._C.takes_cuda:
        return None, "chorus_torch was built without CUDA"
    if not torch.cuda.is_available():
        return None, "torch finds no GPU"
    return Torchs(), ""
