#!/usr/bin/env python3
"""Writes the golden frames as inputs of the fuzz targets, into `corpus/`.

The inputs are as `tests/wire/any.rs` reads them: the number of the API, the place of the version
among its versions, what follows these in a frame; for batches one byte that chooses, then a
batch, found by its magic and its length.
"""

import hashlib
import os
import re

HERE = os.path.dirname(os.path.abspath(__file__))
PROTOCOL = os.path.dirname(HERE)
GOLDEN = os.path.join(PROTOCOL, "tests", "wire", "golden")
ROW = re.compile(r"^    (\w+) = (\d+), (\d+)\.\.=(\d+), ", re.MULTILINE)
HEADER = 61


def write(target, content):
    folder = os.path.join(HERE, "corpus", target)
    os.makedirs(folder, exist_ok=True)
    name = hashlib.sha1(content).hexdigest()
    with open(os.path.join(folder, name), "wb") as file:
        file.write(content)


def batches(frame):
    for at in range(len(frame) - HEADER + 1):
        length = int.from_bytes(frame[at + 8 : at + 12], "big", signed=True)
        end = at + 12 + length
        if frame[at + 16] == 2 and frame[at + 21] == 0 and HEADER <= end - at <= len(frame) - at:
            yield frame[at:end]


def main():
    with open(os.path.join(PROTOCOL, "src", "api.rs"), encoding="utf-8") as text:
        rows = ROW.findall(text.read())
    for api, key, oldest, newest in rows:
        path = os.path.join(GOLDEN, f"{api}.txt")
        if not os.path.exists(path):
            continue
        with open(path, encoding="utf-8") as text:
            lines = [line.split() for line in text]
        for version, direction, digits in lines:
            frame = bytes.fromhex(digits)
            place = int(version) - int(oldest)
            if int(version) <= int(newest):
                rest = frame[4:] if direction == "request" else frame
                write(direction, bytes([int(key), place]) + rest)
            if api in ("Produce", "Fetch"):
                for number, batch in enumerate(batches(frame)):
                    write("batch", bytes([number]) + batch)


if __name__ == "__main__":
    main()
