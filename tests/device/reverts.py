#!/usr/bin/env python3
"""Takes back what was mended in the GPU code, one entry of docs/device-review.md at a time, and
expects that the entry's tests fail.

    reverts.py check                     every edit below still fits the sources, every entry has one
    reverts.py run TREE [ENTRY ...]      copies the sources to TREE, builds there, runs (all) entries

An edit replaces a text that stands once in its file. What is only worked on by nvcc (`ptx`) runs
the unchanged tests by the changed kernels; it is left out, by name, where there is no nvcc.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from reverts_list import REVERTS  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
REVIEW = os.path.join(ROOT, "docs", "device-review.md")
LIMIT_S = 300  # of a test that hangs without the mend


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def check():
    problems = []
    for revert in REVERTS:
        for path, old, _ in revert.edits:
            times = read(os.path.join(ROOT, path)).count(old)
            if times != 1:
                problems.append(f"{revert.entry}: {path} has this {times} times, not once:\n{old}")
        for test in revert.tests:
            if not named_in_sources(test):
                problems.append(f"{revert.entry}: there is no test {test}")
    problems += unknown_commits()
    entries = re.findall(r"^\| ([A-Z]\d+) \|", read(REVIEW), re.M)
    listed = {revert.entry for revert in REVERTS}
    if len(entries) < 20 or set(entries) != listed:
        problems.append(f"entries of {REVIEW} and reverts differ: {set(entries) ^ listed}")
    print("\n".join(problems) or f"{len(REVERTS)} reverts of {len(listed)} entries fit")
    return 1 if problems else 0


def unknown_commits():
    """Commits of the review that the history does not have by this title, where there is one."""
    problems = []
    for commit, title in re.findall(r"^\| \w \| `(\w+)` \| (.*?)(?: \(.*)? \|$", read(REVIEW), re.M):
        found = subprocess.run(["git", "-C", ROOT, "log", "-1", "--format=%s", commit],
                               capture_output=True, text=True, check=False)
        if found.returncode == 0 and found.stdout.strip() != title:
            problems.append(f"{commit} is '{found.stdout.strip()}', not '{title}'")
    return problems


def named_in_sources(test):
    """Whether `Suite.Name`, of a test with parameters or without, stands somewhere in tests/."""
    folders = [os.path.join(ROOT, "tests", each) for each in ("device", "nccl")]
    if test.endswith(".sh"):
        return any(os.path.exists(os.path.join(folder, test)) for folder in folders)
    plain = test.split("/")[1] if "/" in test else test
    pattern = re.compile(r"TEST(?:_P|_F)?\({},\s*{}\)".format(*plain.split(".")))
    return any(pattern.search(read(os.path.join(folder, file))) for folder in folders
               for file in os.listdir(folder) if file.endswith(".cpp"))


def copy_sources(tree):
    listed = subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True, text=True,
                            check=True).stdout.split("\n")
    for path in filter(None, listed):
        source, target = os.path.join(ROOT, path), os.path.join(tree, path)
        if not os.path.isfile(source):
            continue
        if os.path.exists(target) and read_bytes(source) == read_bytes(target):
            continue  # with its time: it is not compiled again
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copyfile(source, target)
        shutil.copymode(source, target)


def read_bytes(path):
    with open(path, "rb") as file:
        return file.read()


class Tree:
    """The copy, its build and its kernels."""

    def __init__(self, folder):
        self.folder = os.path.abspath(folder)
        copy_sources(self.folder)
        self.build = os.path.join(self.folder, "build", "dev")
        self.nvcc = shutil.which("nvcc") or os.path.join(
            os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc")
        if not os.path.exists(self.nvcc):
            self.nvcc = None
        self.configure()

    def configure(self):
        self.command(["cmake", "--preset", "dev", "-DCHORUS_CUDA=OFF"])

    def command(self, words, **more):
        done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, check=False,
                              **more)
        if done.returncode != 0:
            sys.exit(f"{' '.join(words)}:\n{(done.stdout + done.stderr)[-4000:]}")
        return done.stdout

    def make(self, *targets):
        if any(targets):
            self.command(["cmake", "--build", self.build, "-j", str(os.cpu_count()), "--target",
                          *targets])

    def kernels(self):
        path = os.path.join(self.build, "reverted.ptx")
        include = [f"-I{os.path.join(self.folder, each)}" for each in ("include", "src", "")]
        self.command([self.nvcc, "-std=c++20", "-O3", "-fmad=false", "--expt-relaxed-constexpr",
                      *include, "-arch=compute_90", "-ptx", "-o", path, "src/device/kernels.cu"])
        return path

    def run(self, revert, test, ptx):
        """The test's exit status and output; None as status: it did not end."""
        environment = dict(os.environ, CHORUS_FLIGHT_DIR="")
        if ptx:
            environment["FAKE_CUDA_KERNELS"] = f"ptx:{ptx}"
        if revert.command:
            words = [each.format(build=self.build, tree=self.folder, test=test, nvcc=self.nvcc)
                     for each in revert.command]
        else:
            program = "nccl" if revert.target.startswith("nccl") else "device"
            words = [os.path.join(self.build, "tests", program, revert.target),
                     f"--gtest_filter={test}"]
        try:
            done = subprocess.run(words, cwd=self.folder, env=environment, capture_output=True,
                                  text=True, errors="replace", timeout=LIMIT_S, check=False)
        except subprocess.TimeoutExpired as hung:
            return None, (hung.stdout or b"").decode(errors="replace")
        return done.returncode, done.stdout + done.stderr


def passes_before(tree, revert, ptx):
    """What is wrong with its tests as they are, or None."""
    for test in revert.tests:
        status, output = tree.run(revert, test, ptx)
        if status != 0 or (not revert.command and "[  PASSED  ] 0 tests" in output):
            return f"{test} does not pass as it is:\n{output[-2000:]}"
    return None


def fails_without(tree, revert):
    """Which of its tests does not fail, or not for that reason, or None."""
    kept = {path: read(os.path.join(tree.folder, path)) for path, _, _ in revert.edits}
    try:
        for path, old, new in revert.edits:
            text = read(os.path.join(tree.folder, path))
            write(os.path.join(tree.folder, path), text.replace(old, new))
        ptx = tree.kernels() if revert.ptx else None
        if not revert.ptx:
            tree.make(revert.target)
        for test in revert.tests:
            status, output = tree.run(revert, test, ptx)
            said = re.search(revert.says, output)
            if status == 0:
                return f"{test} passes all the same"
            if status is not None and not said:
                return f"{test} fails, but does not say '{revert.says}':\n{output[-2000:]}"
            how = said.group(0)[:150] if said else "does not end"
            print(f"{revert.entry}: {revert.what}: {test} fails: {how}", flush=True)
    finally:
        for path, text in kept.items():
            write(os.path.join(tree.folder, path), text)
    return None


def run(folder, entries):
    tree = Tree(folder)
    chosen = []
    for revert in REVERTS:
        if entries and revert.entry not in entries:
            continue
        if tree.nvcc is None and (revert.ptx or revert.entry == "L3"):
            print(f"{revert.entry}: skipped: there is no nvcc")
            continue
        chosen.append(revert)
    failed = []
    # All targets once, then one build for each revert.
    tree.make(*{revert.target for revert in chosen if revert.target})
    ptx = tree.kernels() if any(revert.ptx for revert in chosen) else None
    for judge in (lambda revert: passes_before(tree, revert, ptx if revert.ptx else None),
                  lambda revert: fails_without(tree, revert)):
        for revert in chosen:
            problem = judge(revert)
            if problem:
                print(f"{revert.entry}: NOT NOTICED: {revert.what}: {problem}", flush=True)
                failed.append(revert.entry)
    print(f"{len(chosen)} reverts; not noticed: {' '.join(failed) or 'none'}")
    return 1 if failed else 0


def main(arguments):
    if arguments == ["check"]:
        return check()
    if arguments[:1] == ["run"] and len(arguments) > 1:
        return run(arguments[1], arguments[2:])
    if arguments[:1] == ["run"]:
        with tempfile.TemporaryDirectory() as folder:
            return run(folder, [])
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
