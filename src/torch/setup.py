"""pip install (or pip wheel) --no-build-isolation ./src/torch: builds libchorus and chorus_torch for this
Python's torch, with CMake and Ninja, in build/python-*, and installs both as one package. CMAKE_ARGS is
handed to CMake; the kernels of GPUs, which take nvcc minutes, are built if it has -DCHORUS_CUDA=ON."""

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parents[2]
VERSION = re.search(r"project\(chorus VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
LEFT_BEHIND = ROOT / "build" / "python-package"  # what setuptools leaves lying about
LEFT_BEHIND.mkdir(parents=True, exist_ok=True)


class Build(build_ext):
    def run(self):
        import torch

        environment = dict(os.environ)
        if not torch.compiled_with_cxx11_abi():  # PyPI's before 2.7: libchorus must be alike
            old = "-D_GLIBCXX_USE_CXX11_ABI=0"
            environment["CXXFLAGS"] = f"{environment.get('CXXFLAGS', '')} {old}".strip()
        build = ROOT / "build" / f"python-{sys.implementation.cache_tag}-torch-{torch.__version__}"
        extra = os.environ.get("CMAKE_ARGS", "").split()
        if not any(argument.startswith("-DCHORUS_CUDA=") for argument in extra):
            extra.append("-DCHORUS_CUDA=OFF")
        subprocess.run(
            ["cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
             "-DCHORUS_BUILD_TESTS=OFF", "-DCHORUS_BUILD_TOOLS=OFF", "-DCHORUS_TORCH=ON",
             "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON", f"-DCHORUS_PYTHON={sys.executable}", *extra],
            check=True, env=environment)
        subprocess.run(["cmake", "--build", build, "--target", "chorus_torch"], check=True)
        package = (Path(__file__).parent if self.inplace else Path(self.build_lib)) / "chorus_torch"
        package.mkdir(parents=True, exist_ok=True)
        for file in (build / "python" / "chorus_torch").glob("_[Cb]*"):
            shutil.copy(file, package)
        for file in (build / "src").glob("libchorus.so.?.?"):
            shutil.copy(os.path.realpath(file), package / file.name)


def of_torch():
    """The version of torch that this is built for: one with another minor version is refused."""
    try:
        return ".".join(version("torch").split("+")[0].split(".")[:2])
    except PackageNotFoundError:
        raise SystemExit("chorus-torch is built for the torch of this Python, which has none: install torch "
                         "first, then pip install --no-build-isolation ./src/torch")


setup(
    name="chorus-torch",
    version=f"{VERSION}+torch{of_torch()}",
    description="Chorus as a backend of torch.distributed",
    packages=["chorus_torch"],
    py_modules=["_chorus_torch_autoload"],
    # By the first torch loads it as it is imported, by the second (2.15) where a group asks for the name.
    entry_points={
        "torch.backends": ["chorus = _chorus_torch_autoload:with_torch"],
        "torch.distributed.backends": ["chorus = _chorus_torch_autoload:by_name"],
    },
    ext_modules=[Extension("chorus_torch._C", [])],
    cmdclass={"build_ext": Build},
    options={"build": {"build_base": str(LEFT_BEHIND)}, "egg_info": {"egg_base": str(LEFT_BEHIND)}},
    python_requires=">=3.9",
    install_requires=[f"torch=={of_torch()}.*"],
)
