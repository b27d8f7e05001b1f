"""keep_works.py SCRIPT [ARGUMENT...]: runs a script with torch.distributed.pipelining mended for Gloo.

That of torch 2.6 waits for the last of several messages and drops the others, and Gloo gives up a message
whose work is dropped: what is left of the schedule waits for ever.
"""

import runpy
import sys

import torch.distributed as dist
from torch.distributed.pipelining import schedules


class Together:
    def __init__(self, works):
        self.works = works

    def wait(self):
        for work in self.works:
            work.wait()


kept = []


def batch(messages, desc=None):
    if not messages:
        return None
    kept.append(Together(dist.batch_isend_irecv(messages)))
    return kept[-1]


schedules._batch_p2p = batch
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
