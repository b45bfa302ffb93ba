"""Writes another RUNPATH over that of an ELF file, which must be no longer: what is left over becomes zeros.

usage: runpath.py FILE RUNPATH
"""
import re
import subprocess
import sys


def main():
    file, wanted = sys.argv[1], sys.argv[2].encode()
    dynamic = subprocess.run(["readelf", "-d", file], check=True, capture_output=True, text=True).stdout
    found = re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", dynamic)
    if len(found) != 1:
        sys.exit(f"{file}: {len(found)} run paths, expected one")
    before = found[0].encode()
    with open(file, "rb") as handle:
        data = handle.read()
    if data.count(before + b"\0") != 1:
        sys.exit(f"{file}: its run path stands in it {data.count(before)} times")
    if len(wanted) > len(before):
        sys.exit(f"{file}: '{wanted.decode()}' is longer than '{before.decode()}'")
    with open(file, "wb") as handle:
        handle.write(data.replace(before + b"\0", wanted.ljust(len(before), b"\0") + b"\0"))


main()
