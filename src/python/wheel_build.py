"""What the wheels of src/python and src/torch have in common: Chorus built by CMake for one Python, and laid into
packages together with the libraries that it needs."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parents[2]
VERSION = re.search(r"project\(chorus VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
LEFT_BEHIND = ROOT / "build" / "python-package"  # what setuptools leaves lying about


# What builds the library; tests, records and documents stay behind.
SOURCES = ["CMakeLists.txt", "LICENSE", "README.md", "cmake", "collectives", "include", "src", "synth", "topology", "transports"]


class SourceArchive(sdist):
    """All of the library's sources, since all of them are compiled. pip takes the archive from its top, where a file sends
    it on to the folder of this package."""

    def make_release_tree(self, base_dir, files):
        top = Path(base_dir)
        for name in tracked():
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, top / name)
        folder = Path.cwd().relative_to(ROOT)
        (top / "pyproject.toml").write_text('[build-system]\nrequires = ["setuptools>=70.1"]\n'
                                            'build-backend = "build_in_folder"\nbackend-path = ["."]\n')
        (top / "build_in_folder.py").write_text(
            "import os\nfrom pathlib import Path\n\nfrom setuptools.build_meta import *\n\n"
            f"os.chdir(Path(__file__).resolve().parent / {str(folder)!r})\n")
        self.distribution.metadata.write_pkg_info(base_dir)


def tracked():
    """The files of SOURCES that git has, relative to ROOT: what else lies about there is nobody's source."""
    listed = subprocess.run(["git", "ls-files", "-z", *SOURCES], cwd=ROOT, capture_output=True, text=True)
    if not listed.stdout:
        raise SystemExit(f"an archive of sources is made in a checkout, of what git lists there: {listed.stderr or ROOT}")
    return [name for name in listed.stdout.split("\0") if (ROOT / name).is_file()]


def options():
    LEFT_BEHIND.mkdir(parents=True, exist_ok=True)
    return {"build": {"build_base": str(LEFT_BEHIND)}, "egg_info": {"egg_base": str(LEFT_BEHIND)}}


def build(name, targets, arguments, environment=None):
    """Builds `targets` in build/NAME and returns that folder. CMAKE_ARGS is handed on."""
    folder = ROOT / "build" / name
    extra = os.environ.get("CMAKE_ARGS", "").split()
    if not any(argument.startswith("-DCHORUS_CUDA=") for argument in extra):
        extra.append("-DCHORUS_CUDA=OFF")  # kernels take nvcc minutes
    subprocess.run(
        ["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
         "-DCHORUS_BUILD_TESTS=OFF", "-DCHORUS_BUILD_TOOLS=OFF", "-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON", "-DCMAKE_INSTALL_RPATH=$ORIGIN",
         f"-DCHORUS_PYTHON={sys.executable}", *arguments, *extra],
        check=True, env=environment)
    subprocess.run(["cmake", "--build", folder, "--target", *targets], check=True)
    return folder


def lay_module(folder, where):
    """The package chorus of a build, but for the libraries."""
    package = Path(where) / "chorus"
    package.mkdir(parents=True, exist_ok=True)
    for file in (folder / "python" / "chorus").iterdir():
        if file.is_file():
            shutil.copy(file, package)


def lay_libraries(folder, package):
    """libchorus, and the hwloc that it was built with."""
    (library,) = (folder / "src").glob("libchorus.so.?.?")
    shutil.copy(os.path.realpath(library), package / library.name)
    needed = subprocess.run(["ldd", library], check=True, capture_output=True, text=True).stdout
    for path in re.findall(r"=> (\S*/libhwloc\.so\S*)", needed):
        shutil.copy(os.path.realpath(path), package / os.path.basename(path))
