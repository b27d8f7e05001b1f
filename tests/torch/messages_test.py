"""Messages find their receives: by tag and source, from anyone, from the rank itself."""

import os
import unittest

import torch
import torch.distributed as dist

import chorus_torch
from ranks import OnRanks, equal


class Messages(OnRanks):
    def test_messages_arrive_whatever_the_order_of_waiting(self):
        def body(rank, size):
            peer = 1 - rank
            got = [torch.empty(n) for n in (1, 100_000, 3)]
            receives = [dist.irecv(t, peer) for t in got]
            sends = [dist.isend(torch.full((n,), float(rank)), peer) for n in (1, 100_000, 3)]
            for work in reversed(receives + sends):
                work.wait()
            for t in got:
                equal(t, torch.full_like(t, float(peer)))
            ops = [dist.P2POp(dist.irecv, got[0], peer), dist.P2POp(dist.isend, torch.tensor([7.0]), peer)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            equal(got[0], torch.tensor([7.0]))
            if rank == 0:
                dist.send(torch.tensor([1, 2]), 1, tag=5)
            else:
                numbers = torch.empty(2, dtype=torch.int64)
                dist.recv(numbers, 0, tag=5)
                equal(numbers, torch.tensor([1, 2]))
        self.on_ranks(body, (2,))

    def test_messages_are_taken_by_tag_in_whatever_order(self):
        def body(rank, size):
            peer = 1 - rank
            counts = {tag: 1 if tag % 3 == 0 else 20 + tag if tag % 3 == 1 else 50_000 for tag in range(9)}
            sends = [dist.isend(torch.full((n,), 10.0 * rank + tag), peer, tag=tag) for tag, n in counts.items()]
            # The last first, so that all others come before anybody asks for them; and some in between.
            for tag in [8, 0, 1, 7, 2, 5, 6, 4, 3]:
                got = torch.empty(counts[tag])
                dist.recv(got, peer, tag=tag)
                equal(got, torch.full((counts[tag],), 10.0 * peer + tag))
            for work in sends:
                work.wait()
            # Of one tag in the order of sending, also where the receives were there first.
            got = [torch.empty(n) for n in (3, 3000, 3)]
            receives = [dist.irecv(t, peer, tag=5) for t in got] + [dist.irecv(torch.empty(2), peer, tag=6)]
            dist.barrier()
            sends = [dist.isend(torch.ones(2), peer, tag=6)]
            sends += [dist.isend(torch.full((n,), float(i)), peer, tag=5) for i, n in enumerate((3, 3000, 3))]
            for work in receives + sends:
                work.wait()
            for i, t in enumerate(got):
                equal(t, torch.full_like(t, float(i)))
            columns = torch.zeros(3, 2)
            work = dist.isend(torch.arange(6.0).reshape(2, 3).t(), peer, tag=1)  # not contiguous, and early
            dist.barrier()
            dist.recv(columns, peer, tag=1)
            equal(columns, torch.arange(6.0).reshape(2, 3).t())
            work.wait()
        self.on_ranks(body, (2,))

    def test_messages_are_received_from_whoever_sends(self):
        def body(rank, size):
            for count in (1, 5000):
                if rank == 0:
                    seen, expected = [], sorted(2 * list(range(1, size)))
                    for _ in expected:
                        got = torch.empty(count)
                        source = dist.recv(got)
                        equal(got, torch.full((count,), float(source)))
                        seen.append(source)
                    assert sorted(seen) == expected, seen
                    # By tag; and one that names its source takes no other's.
                    got = [torch.empty(count) for _ in range(2)]
                    named = dist.irecv(got[0], size - 1, tag=9)
                    dist.barrier()
                    assert dist.recv(got[1], tag=3) == 1
                    equal(got[1], torch.full((count,), 3.0))
                    named.wait()
                    equal(got[0], torch.full((count,), 9.0))
                else:
                    for _ in range(2):
                        dist.send(torch.full((count,), float(rank)), 0)
                    dist.barrier()
                    if rank == 1:
                        dist.send(torch.full((count,), 3.0), 0, tag=3)
                    if rank == size - 1:
                        dist.send(torch.full((count,), 9.0), 0, tag=9)
                dist.barrier()
        self.on_ranks(body, (2, 4))
        os.environ["CHORUS_TRANSPORTS"] = "tcp"  # where messages come over connections, not by eager_ring
        try:
            self.on_ranks(body, (3,))
        finally:
            del os.environ["CHORUS_TRANSPORTS"]

    def test_a_rank_sends_messages_to_itself(self):
        def body(rank, size):
            group = dist.group.WORLD
            for count in (1, 5000):
                for receive_first in (True, False):
                    got = torch.empty(count)
                    both = [lambda: group.recv([got], rank, 4), lambda: group.send([torch.full((count,), 2.0)], rank, 4)]
                    for work in [start() for start in (both if receive_first else reversed(both))]:
                        work.wait()
                    equal(got, torch.full((count,), 2.0))
            got = [torch.empty(3) for _ in range(size)]
            ops = [dist.P2POp(dist.irecv, got[r], r) for r in range(size)]
            ops += [dist.P2POp(dist.isend, torch.full((3,), float(rank)), r) for r in range(size)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            for r in range(size):
                equal(got[r], torch.full((3,), float(r)))
        self.on_ranks(body, (1, 2))

    def test_a_receive_in_one_collective_order_does_not_block_collectives(self):
        def body(rank, size):
            got = torch.empty(4)
            work = dist.irecv(got, 1) if rank == 0 else None
            total = torch.ones(10)
            dist.all_reduce(total)
            equal(total, torch.full((10,), float(size)))
            if rank == 1:
                dist.send(torch.arange(4.0), 0)
            if work:
                work.wait()
                equal(got, torch.arange(4.0))
        self.on_ranks(body, (2,))

    def test_what_the_future_of_a_message_runs_may_wait_for_another_message(self):
        def body(rank, size):
            peer = 1 - rank
            for round in range(20):
                got = [torch.zeros(1) for _ in range(4)]
                first, second, third = (dist.irecv(t, peer).get_future() for t in got[:3])
                def deeper(done):
                    last = dist.irecv(got[3], peer).get_future()
                    dist.isend(torch.tensor([1000.0]), peer)
                    both = last.then(lambda end: third.wait()[0] + end.value()[0]).wait()
                    return both + done.value()[0]
                chained = first.then(lambda done: second.then(deeper).wait() + done.value()[0])
                dist.barrier()  # nothing has been sent: it is the group's own thread that runs them
                for number in (1.0, 10.0, 100.0):
                    dist.isend(torch.tensor([number]), peer)
                equal(chained.wait(), torch.tensor([1111.0]))
        self.on_ranks(body, (2,))


if __name__ == "__main__":
    unittest.main()
