"""Objects of Python between ranks, pickled: mpi4py's methods in small letters."""

import pickle
from array import array


class Objects:
    """What Comm has beside its calls on buffers. Ranks of a job trust each other: unpickling runs code."""

    __slots__ = ()

    def barrier(self):
        self.Barrier()

    def send(self, obj, dest):
        data = pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
        self.Send(array("q", [len(data)]), dest)
        self.Send(data, dest)

    def recv(self, source):
        size = array("q", [0])
        self.Recv(size, source)
        data = bytearray(size[0])
        self.Recv(data, source)
        return pickle.loads(data)

    def bcast(self, obj, root=0):
        mine = self.rank == root
        data = pickle.dumps(obj, pickle.HIGHEST_PROTOCOL) if mine else b""
        size = array("q", [len(data)])
        self.Bcast(size, root)
        data = data if mine else bytearray(size[0])
        self.Bcast(data, root)
        return obj if mine else pickle.loads(data)

    def allgather(self, obj):
        data = pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
        sizes = array("q", bytes(8 * self.size))
        self.Allgather(array("q", [len(data)]), sizes)
        longest = max(sizes)
        every = bytearray(longest * self.size)
        self.Allgather(data.ljust(longest, b"\0"), every)
        return [pickle.loads(memoryview(every)[i * longest:]) for i in range(self.size)]

    def gather(self, obj, root=0):
        every = self.allgather(obj)
        return every if self.rank == root else None

    def scatter(self, objs, root=0):
        every = self.bcast(objs, root)
        if len(every) != self.size:
            raise ValueError(f"scatter: {len(every)} objects for {self.size} ranks")
        return every[self.rank]
