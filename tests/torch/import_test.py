"""What is imported beside chorus_torch: another torch than it was built for is refused with a sentence, and a second OpenMP
runtime changes nothing."""

import ctypes.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import chorus_torch

PACKAGE = Path(chorus_torch.__file__).parent
TWO_RANKS = '''
import os, tempfile, torch, torch.distributed as dist, chorus_torch
{more}
folder = tempfile.mkdtemp()
child = os.fork()
rank = int(child == 0)
dist.init_process_group("chorus", store=dist.FileStore(folder + "/store", 2), rank=rank, world_size=2)
for count in (1, 1 << 20):
    x = torch.arange(count, dtype=torch.float64).sin() * (rank + 1)
    dist.all_reduce(x)
    torch.testing.assert_close(x, torch.arange(count, dtype=torch.float64).sin() * 3)
dist.destroy_process_group()
if child:
    assert os.waitpid(child, 0)[1] == 0
    {last}
    print("held")
'''


def python(script, **variables):
    environment = {**os.environ, "CHORUS_FLIGHT_DIR": "", **variables}
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, env=environment)


class Imports(unittest.TestCase):
    def test_another_torch_is_refused_by_name(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(PACKAGE, Path(folder, "chorus_torch"), symlinks=True)
            Path(folder, "chorus_torch", "_built_for.py").write_text('torch_version = "2.3.1+cpu"\n')
            said = python("import chorus_torch", PYTHONPATH=folder)
        self.assertNotEqual(said.returncode, 0)
        self.assertRegex(said.stderr.strip().splitlines()[-1],
                         r"^ImportError: chorus_torch was built for torch 2\.3\.1\+cpu, but this is .*: build it again")

    def test_it_brings_no_openmp_runtime_of_its_own(self):
        said = python("import torch\n"
                      "maps = lambda: {line.split()[-1] for line in open('/proc/self/maps') if 'omp' in line.split()[-1]}\n"
                      "before = maps()\nimport chorus_torch\nprint(sorted(maps() - before))")
        self.assertEqual(said.stdout.strip(), "[]", said.stderr)

    def test_two_openmp_runtimes_in_a_process_change_nothing(self):
        found = [name for name in map(ctypes.util.find_library, ("omp5", "omp", "iomp5", "gomp")) if name]
        with tempfile.TemporaryDirectory() as folder:
            library = found and self.another(found[0], folder)
            if not library:
                self.skipTest("there is no OpenMP runtime but torch's")
            # Its name is not the one that torch's has, so the process has two; torch's threads compute meanwhile.
            last = ("runtimes = {line.split()[-1] for line in open('/proc/self/maps') if 'omp' in line.split()[-1]}\n"
                    "    assert len(runtimes) >= 2, runtimes")
            more = f"import ctypes; ctypes.CDLL({library!r}).omp_get_max_threads(); torch.set_num_threads(2)"
            said = python(TWO_RANKS.format(more=more, last=last), OMP_NUM_THREADS="2")
        self.assertEqual(said.stdout.strip(), "held", said.stderr)

    @staticmethod
    def another(name, folder):
        """A copy of a library under another path: the loader takes it for another one."""
        listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
        path = re.search(rf"^\s*{re.escape(name)} .*=> (\S+)$", listed, re.M)
        return shutil.copy(path[1], os.path.join(folder, "libomp-another.so")) if path else None


if __name__ == "__main__":
    unittest.main()
