"""pip install (or pip wheel) ./src/python: builds libchorus and the module chorus with CMake and Ninja, in
build/python-module, and installs both as one package for every Python from 3.11 on."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # where pip has it not
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

import wheel_build


class Build(build_ext):
    def run(self):
        folder = wheel_build.build("python-module", ["chorus_python"],
                                   ["-DCHORUS_TORCH=OFF", "-DCHORUS_PYTHON_MODULE=ON"])
        where = Path(__file__).parent if self.inplace else Path(self.build_lib)
        wheel_build.lay_module(folder, where)
        wheel_build.lay_libraries(folder, where / "chorus")


setup(
    name="chorus-python",
    version=wheel_build.VERSION,
    description="Collective communication for numpy and DLPack",
    packages=["chorus"],
    ext_modules=[Extension("chorus._core", [], py_limited_api=True)],
    cmdclass={"build_ext": Build, "sdist": wheel_build.SourceArchive},
    options={**wheel_build.options(), "bdist_wheel": {"py_limited_api": "cp311"}},
    python_requires=">=3.11",
)
