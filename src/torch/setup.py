"""pip install (or pip wheel) --no-build-isolation ./src/torch: builds libchorus, chorus and chorus_torch for
this Python's torch, with CMake and Ninja, in build/python-*, and installs all as one. CMAKE_ARGS is
handed to CMake; the kernels of GPUs, which take nvcc minutes, are built if it has -DCHORUS_CUDA=ON."""

import os
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

import wheel_build

WITH_MODULE = sys.version_info >= (3, 11)  # of which the module chorus needs the stable API


class Build(build_ext):
    def run(self):
        if not TORCH:
            raise SystemExit("chorus-torch is built for the torch of this Python, which has none: install torch "
                             "first, then pip install --no-build-isolation ./src/torch")
        import torch

        environment = dict(os.environ)
        if not torch.compiled_with_cxx11_abi():  # PyPI's before 2.7: libchorus must be alike
            old = "-D_GLIBCXX_USE_CXX11_ABI=0"
            environment["CXXFLAGS"] = f"{environment.get('CXXFLAGS', '')} {old}".strip()
        folder = wheel_build.build(f"python-{sys.implementation.cache_tag}-torch-{torch.__version__}",
                                   ["chorus_torch", *(["chorus_python"] if WITH_MODULE else [])],
                                   ["-DCHORUS_TORCH=ON"], environment)
        where = Path(__file__).parent if self.inplace else Path(self.build_lib)
        package = where / "chorus_torch"
        package.mkdir(parents=True, exist_ok=True)
        for file in (folder / "python" / "chorus_torch").glob("_[Cb]*"):
            shutil.copy(file, package)
        if WITH_MODULE:
            wheel_build.lay_module(folder, where)
        wheel_build.lay_libraries(folder, where / ("chorus" if WITH_MODULE else "chorus_torch"))


def of_torch():
    """The version of torch that this is built for, by which one with another minor version is refused; none in an archive of
    sources, nor where there is no torch."""
    try:
        return None if "sdist" in sys.argv else ".".join(version("torch").split("+")[0].split(".")[:2])
    except PackageNotFoundError:
        return None


TORCH = of_torch()
setup(
    name="chorus-torch",
    version=wheel_build.VERSION + (f"+torch{TORCH}" if TORCH else ""),
    description="Chorus as a backend of torch.distributed",
    packages=["chorus_torch", *(["chorus"] if WITH_MODULE else [])],
    package_dir={"chorus": "../python/chorus"},
    py_modules=["_chorus_torch_autoload"],
    # By the first torch loads it as it is imported, by the second (2.15) where a group asks for the name.
    entry_points={
        "torch.backends": ["chorus = _chorus_torch_autoload:with_torch"],
        "torch.distributed.backends": ["chorus = _chorus_torch_autoload:by_name"],
    },
    ext_modules=[Extension("chorus_torch._C", [])],
    cmdclass={"build_ext": Build, "sdist": wheel_build.SourceArchive},
    options=wheel_build.options(),
    python_requires=">=3.9",
    install_requires=[f"torch=={TORCH}.*" if TORCH else "torch"],
)
