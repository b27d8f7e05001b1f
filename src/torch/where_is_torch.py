"""Prints what CMake needs of the torch of this Python, separated by semicolons."""

import os
import sysconfig

import torch
import torch.distributed
from torch.utils import cpp_extension

if not torch.distributed.is_available():
    raise SystemExit("this torch has no torch.distributed")
names = ["torch", "torch_cpu", "torch_python", "c10"]
folders = cpp_extension.library_paths() + ["/usr/lib/" + (sysconfig.get_config_var("MULTIARCH") or "")]


def library(name):
    for folder in folders:
        path = os.path.join(folder, f"lib{name}.so")
        if os.path.exists(path):
            return path
    raise SystemExit(f"lib{name}.so is not in {folders}")


def pybind11():
    """Definitions that make this torch's Python types ours: pybind11 shares them among modules of one compiler."""
    for name in ("COMPILER_TYPE", "STDLIB", "BUILD_ABI"):
        value = getattr(torch._C, f"_PYBIND11_{name}", None)
        if value is not None:
            yield f'PYBIND11_{name}="{value}"'


def cuda():
    """The version of CUDA that this torch was built for, a folder with cuda_runtime_api.h, and torch's library
    of streams; empty where there is none."""
    version = torch.version.cuda or ""
    if not version:
        return "", "", ""
    major = version.split(".")[0]
    site = os.path.dirname(os.path.dirname(torch.__file__))
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), cpp_extension.CUDA_HOME, "/usr/local/cuda"]
    # What came with torch fits it best; but not all of those folders are whole.
    folders = [f"{site}/nvidia/cuda_runtime/include", f"{site}/nvidia/cu{major}/include",
               *(f"{home}/include" for home in homes if home)]
    needed = ["cuda_runtime_api.h", "crt/host_defines.h"]
    for folder in folders:
        if all(os.path.exists(os.path.join(folder, header)) for header in needed):
            return version, folder, library("c10_cuda")
    return version, "", ""


includes = cpp_extension.include_paths() + [sysconfig.get_paths()["include"]]
print(
    torch.__version__,
    sysconfig.get_config_var("EXT_SUFFIX"),
    "|".join(path for path in includes if os.path.isdir(path)),
    "|".join(library(name) for name in names),
    int(torch.compiled_with_cxx11_abi()),
    "|".join(pybind11()),
    *cuda(),
    sep=";",
)
