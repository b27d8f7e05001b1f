"""An example prints the same losses through Chorus as through Gloo, on two ranks of torchrun."""

import subprocess
import sys


def losses(script, backend):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", script, backend]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    if done.returncode != 0:
        raise SystemExit(f"{backend}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    found = [float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("step")]
    if len(found) < 5:
        raise SystemExit(f"{backend}: no losses in:\n{done.stdout}\n{done.stderr}")
    return found


script = sys.argv[1]
chorus, gloo = losses(script, "chorus"), losses(script, "gloo")
print("chorus", chorus)
print("gloo  ", gloo)
# Two contributions add up to the same bits in either order.
if chorus != gloo:
    raise SystemExit("the losses differ")
if not chorus[-1] < chorus[0]:
    raise SystemExit("nothing was learnt")
