"""Finds CUDA's libraries and tools on this machine, and makes the environment in which of-opt finds them too."""

import glob
import os
import pathlib
import shutil
import site
import sys

# Names of each library, newest first, and the variable of of-opt that names its file.
LIBRARIES = {
    "nvrtc": (["libnvrtc.so.13", "libnvrtc.so.12"], None),
    "cublaslt": (["libcublasLt.so.13", "libcublasLt.so.12"], "OF_CUBLASLT"),
    "cudnn": (["libcudnn.so.9"], "OF_CUDNN"),
    "nccl": (["libnccl.so.2"], "OF_NCCL"),
}
TOOLS = ["nvidia-smi", "nvcc", "ncu", "compute-sanitizer"]


def site_folders():
    """Every folder of installed packages of this Python and of the system's."""
    folders = [*sys.path, *site.getsitepackages(), site.getusersitepackages()]
    for prefix in (sys.prefix, sys.base_prefix, "/usr", "/usr/local"):
        folders += glob.glob(f"{prefix}/lib/python3*/site-packages") + glob.glob(f"{prefix}/lib/python3*/dist-packages")
    return unique(f for f in folders if f.endswith("-packages") and os.path.isdir(f))


def toolkits():
    """Folders of CUDA toolkits."""
    named = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    return unique(f for f in [*named, "/usr/local/cuda", *sorted(glob.glob("/usr/local/cuda-*"), reverse=True), "/opt/cuda"] if f and os.path.isdir(f))


def library_folders(sites=None, kits=None):
    """Folders that may hold CUDA's libraries: those of Python packages first, because torch was tested with these."""
    folders = []
    for packages in site_folders() if sites is None else sites:
        folders += sorted(glob.glob(f"{packages}/nvidia/*/lib")) + [f"{packages}/torch/lib"]
    for kit in toolkits() if kits is None else kits:
        folders += [f"{kit}/lib64", *sorted(glob.glob(f"{kit}/targets/*/lib"))]
    return unique(f for f in folders if os.path.isdir(f))


def unique(names):
    return list(dict.fromkeys(str(name) for name in names))


def find(folders):
    """The file of each library that is in one of these folders. A variable of of-opt that is set already wins."""
    found = {}
    for library, (names, variable) in LIBRARIES.items():
        files = [pathlib.Path(folder, name) for name in names for folder in folders]
        files = [file for file in files if file.exists()]
        if variable and os.environ.get(variable):
            files.insert(0, pathlib.Path(os.environ[variable]))
        if files:
            found[library] = str(files[0])
    return found


def environment(work, found, folders):
    """The environment of of-opt. NVRTC has no variable of its own: of-opt looks into the folder `lib` of a toolkit."""
    out = dict(os.environ)
    for library, file in found.items():
        variable = LIBRARIES[library][1]
        if variable:
            out[variable] = file
    if "nvrtc" in found:
        lib = work / "toolkit" / "lib"
        shutil.rmtree(lib, ignore_errors=True)
        lib.mkdir(parents=True)
        for file in pathlib.Path(found["nvrtc"]).parent.glob("libnvrtc*.so*"):
            (lib / file.name).symlink_to(file)
        out["OF_CUDA_TOOLKIT"] = str(lib.parent)
    # The libraries load parts of themselves and of each other by name.
    path = [*folders, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    out["LD_LIBRARY_PATH"] = ":".join(path)
    out.setdefault("OF_CACHE_DIR", str(work / "kernels"))
    return out


def tools():
    """The file of each tool that is installed."""
    folders = [f"{kit}/bin" for kit in toolkits()]
    folders += glob.glob("/opt/nvidia/nsight-compute/*") + [f"{kit}/compute-sanitizer" for kit in toolkits()]
    path = os.pathsep.join([os.environ.get("PATH", ""), *folders])
    found = {tool: shutil.which(tool, path=path) for tool in TOOLS}
    return {tool: file for tool, file in found.items() if file}
