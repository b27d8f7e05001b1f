"""What the wheels of src/python and src/torch have in common: Chorus built by CMake for one Python, and laid into
packages together with the libraries that it needs."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSION = re.search(r"project\(chorus VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
LEFT_BEHIND = ROOT / "build" / "python-package"  # what setuptools leaves lying about


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
