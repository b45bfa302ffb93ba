"""What the command `moe` of an installed wheel starts: it becomes the binary that lies beside this file.

The binary finds LibTorch in the torch package of the same site-packages. Where torch is elsewhere, as in an environment made with
--system-site-packages, it is told where. Where there is none, or another version, a sentence says so.
"""
import os
import sys

TORCH = "@moe_wanted_torch@"  # a binary and its LibTorch are of one version


def stop(words):
    print(f"moe: {words}", file=sys.stderr)
    sys.exit(2)


def torch_version(folder):
    """Read from its file: to import torch takes seconds."""
    with open(os.path.join(folder, "version.py"), encoding="utf-8") as file:
        for line in file:
            if line.startswith("__version__"):
                return line.partition("=")[2].strip(" '\"\n")
    return "of an unknown version"


def find_torch(site_packages):
    beside = os.path.join(site_packages, "torch")
    if os.path.exists(os.path.join(beside, "lib", "libtorch_cpu.so")):
        return beside
    import importlib.util
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        stop(f"no torch in this environment; pip install torch=={TORCH}")
    folder = found.submodule_search_locations[0]
    paths = [os.path.join(folder, "lib"), os.environ.get("LD_LIBRARY_PATH")]
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, paths))
    return folder


def main():
    package = os.path.dirname(os.path.realpath(__file__))
    torch = find_torch(os.path.dirname(package))
    version = torch_version(torch)
    if version.partition("+")[0] != TORCH:
        stop(f"{torch} is torch {version}, this moe was built for {TORCH}; pip install torch=={TORCH}, or install moe again")
    os.environ.setdefault("PYTHON", sys.executable)  # for recipes
    os.execv(os.path.join(package, "moe"), sys.argv)
