"""Fits a line to points that the ranks share: chorus run -n 2 -- python3 fit.py (or mpirun, srun)."""

import numpy as np

import chorus

world = chorus.COMM_WORLD
points = np.random.default_rng(world.rank)  # every rank has points of its own
x = points.uniform(-1, 1, 1000)
y = 3 * x + 1 + points.normal(0, 0.01, 1000)

weights = np.zeros(2)
for step in range(100):
    error = weights[0] * x + weights[1] - y
    gradient = np.array([(error * x).mean(), error.mean()])
    world.Allreduce(chorus.IN_PLACE, gradient, chorus.AVG)
    weights -= gradient

if world.rank == 0:
    print(f"{world.size} ranks: line through {weights[1]:.2f}, slope {weights[0]:.2f}")
