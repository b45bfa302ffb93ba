"""The command `moe` of an installed wheel: executes the binary in this folder.

The binary finds LibTorch in the torch package of the same site-packages. If torch is elsewhere (--system-site-packages), LD_LIBRARY_PATH is
set. If torch is missing or has another version, prints a message and exits with code 2.
"""
import os
import sys

TORCH = "@moe_wanted_torch@"  # the LibTorch version that the binary was built with


def fail(message):
    print(f"moe: {message}", file=sys.stderr)
    sys.exit(2)


def torch_version(folder):
    """Returns the version from version.py, because importing torch takes seconds."""
    with open(os.path.join(folder, "version.py"), encoding="utf-8") as file:
        for line in file:
            if line.startswith("__version__"):
                return line.partition("=")[2].strip(" '\"\n")
    return "of an unknown version"


def find_torch(site_packages):
    folder = os.path.join(site_packages, "torch")
    if os.path.exists(os.path.join(folder, "lib", "libtorch_cpu.so")):
        return folder
    import importlib.util
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        fail(f"no torch in this environment; run pip install torch=={TORCH}")
    folder = found.submodule_search_locations[0]
    paths = [os.path.join(folder, "lib"), os.environ.get("LD_LIBRARY_PATH")]
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, paths))
    return folder


def main():
    package = os.path.dirname(os.path.realpath(__file__))
    torch = find_torch(os.path.dirname(package))
    version = torch_version(torch)
    if version.partition("+")[0] != TORCH:
        fail(f"{torch} is torch {version}, but this moe was built for {TORCH}; run pip install torch=={TORCH}, or install moe again")
    os.environ.setdefault("PYTHON", sys.executable)  # for recipes
    os.execv(os.path.join(package, "moe"), sys.argv)
