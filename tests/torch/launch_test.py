"""Jobs of torchrun, Open MPI's and MPICH's mpirun and `chorus run` meet; torchrun's next attempt
after a killed worker takes the work up; README's lines run as printed.

    launch_test.py BINARY_DIRECTORY [unittest's arguments]
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch
import torch.distributed as dist

HERE = Path(__file__).resolve().parent
README = HERE.parents[1] / "README.md"
BINARIES = Path(sys.argv.pop(1) if len(sys.argv) > 1 else ".").resolve()

# Python 3.11 changed how flags are iterated, on which torch 1.13 depends for its defaults; a rule
# for a rank that does not exist says the same.
DEFAULTS = ["--redirects=9:1", "--tee=9:1"] if torch.__version__.startswith("1.") else []


def torchrun(ranks, *options):
    return [sys.executable, "-m", "torch.distributed.run", "--rdzv_backend=c10d",
            "--rdzv_endpoint=127.0.0.1:0", f"--nproc_per_node={ranks}", *DEFAULTS, *options]


def knows_localhost():
    try:
        return bool(socket.getaddrinfo("localhost", None))
    except OSError:
        return False


needs_localhost = unittest.skipUnless(
    knows_localhost(), "torchrun needs localhost, which no /etc/hosts names here")


class Launch(unittest.TestCase):
    def run_job(self, command, **options):
        job = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, timeout=200, **options)
        self.assertEqual(job.returncode, 0, f"{command}\n{job.stdout}\n{job.stderr}")
        return job.stdout

    def meets(self, command):
        out = self.run_job(command)
        # mpirun may mix the lines of two ranks
        got = sorted(re.findall(r"rank \d of 2: \[[\d., ]+\]", out))
        self.assertEqual(got, [f"rank {r} of 2: [0.5, 0.5]" for r in range(2)], out)

    @needs_localhost
    @unittest.skipIf(torch.__version__.startswith(("1.", "2.0", "2.1.", "2.2.", "2.3.", "2.4.")),
                     "this torch loads no backends by itself: import chorus_torch")
    def test_torch_finds_the_backend_of_an_installed_package_by_name(self):
        script = '''
import sys, torch, torch.distributed as dist
assert "chorus_torch" not in sys.modules or "CHORUS_AS_GLOO" in os.environ, "loaded before anybody asked"
dist.init_process_group(sys.argv[1])
x = torch.ones(2) * dist.get_rank()
dist.all_reduce(x, dist.ReduceOp.AVG)
# In one write: lines of two processes must not run into each other.
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {x.tolist()}\\n", end="", flush=True)
'''.replace("import sys,", "import os, sys,")
        with tempfile.TemporaryDirectory() as folder:  # what pip makes of setup.py's entry points
            about = Path(folder, "chorus_torch-0.dist-info")
            about.mkdir()
            (about / "METADATA").write_text("Metadata-Version: 2.1\nName: chorus-torch\nVersion: 0\n")
            module = "_chorus_torch_autoload"
            (about / "entry_points.txt").write_text(f"[torch.backends]\nchorus = {module}:with_torch\n"
                                                    f"[torch.distributed.backends]\nchorus = {module}:by_name\n")
            shutil.copy(HERE.parents[1] / "src" / "torch" / f"{module}.py", folder)
            program = Path(folder, "program.py")
            program.write_text(script)
            path = folder + os.pathsep + os.environ.get("PYTHONPATH", "")
            for name, more in (("chorus", {}), ("chorus", {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}),
                               ("gloo", {"CHORUS_AS_GLOO": "1"})):
                if "TORCH_DEVICE_BACKEND_AUTOLOAD" in more and not hasattr(dist.Backend, "_ensure_backend_registered"):
                    continue
                with self.subTest(name=name, **more):
                    out = self.run_job([*torchrun(2), program, name],
                                       env={**os.environ, **more, "PYTHONPATH": path})
                    self.assertEqual(sorted(out.splitlines()), [f"rank {r} of 2: [0.5, 0.5]" for r in range(2)])

    @needs_localhost
    def test_chorus_stands_in_for_gloo_where_it_is_asked_to(self):
        script = '''
import torch, torch.distributed as dist, chorus_torch
dist.init_process_group("gloo")
group = dist.group.WORLD
backend = group._get_backend(torch.device("cpu")) if hasattr(group, "_get_backend") else group
assert (dist.get_backend(), backend.name()) == ("gloo", "chorus"), backend.name()
part = dist.new_group([0, 1], backend="gloo")
x = torch.tensor([1.0, 3.0]) * dist.get_rank()
dist.all_reduce(x, dist.ReduceOp.AVG, group=part)  # which Gloo has not
dist.monitored_barrier()
# In one write: lines of two processes must not run into each other.
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {x.tolist()}\\n", end="", flush=True)
'''
        os.environ["CHORUS_AS_GLOO"] = "1"
        try:
            for detail in ("OFF", "DETAIL"):
                os.environ["TORCH_DISTRIBUTED_DEBUG"] = detail
                with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
                    file.write(script)
                    file.flush()
                    out = self.run_job([*torchrun(2), file.name])
                self.assertEqual(sorted(out.splitlines()), [f"rank {r} of 2: [0.5, 1.5]" for r in range(2)])
        finally:
            del os.environ["CHORUS_AS_GLOO"], os.environ["TORCH_DISTRIBUTED_DEBUG"]

    def test_mpirun(self):
        for name, options in (("mpirun.openmpi", ["--oversubscribe", "--allow-run-as-root"]),
                              ("mpirun.mpich", [])):
            with self.subTest(launcher=name):
                if not shutil.which(name):
                    self.skipTest(f"there is no {name} here")
                self.meets([name, "-n", "2", *options, sys.executable, HERE / "mean.py"])

    @needs_localhost
    def test_torchrun_starts_anew_after_a_killed_worker(self):
        with tempfile.TemporaryDirectory() as folder:
            out = self.run_job([*torchrun(2, "--max_restarts=1"), HERE / "elastic.py", folder])
        sum_of_all = float(sum(range(6 * 2)))
        self.assertIn(f"lives 2 first step 4 total [{sum_of_all}]", out)

    def test_lines_of_the_readme_run_as_printed(self):
        text = README.read_text()
        (program,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        blocks = [block for block in blocks if "mean.py" in block]
        self.assertEqual([block.split()[0] for block in blocks], ["sudo", "pip"])
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "mean.py").write_text(program)
            for block in blocks:
                # What is built is here; the package that README installs is not.
                script = re.sub(r"^(sudo|pip) .*\n", "", block).replace("/usr/bin/python3", sys.executable)
                script = script.replace("torchrun", " ".join([sys.executable, "-m torch.distributed.run", *DEFAULTS]))
                script = script.replace("29500", port)
                # As torch 1.13 spells them, and later ones, too.
                script = script.replace("--nproc-per-node", "--nproc_per_node").replace("--master-port", "--master_port")
                script = f"PATH={BINARIES}/bin:$PATH PYTHONPATH={BINARIES}/python\nexport PYTHONPATH\n{script}"
                with self.subTest(script=script):
                    self.assertEqual(self.run_job(["bash", "-c", script], cwd=folder), "[0.5, 0.5, 0.5, 0.5]\n")


if __name__ == "__main__":
    unittest.main()
