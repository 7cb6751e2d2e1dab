"""Writes the files of the tests of Arrow by pyarrow: python3 write.py FOLDER

Row i of 8 rows has numbers that follow from i; record batches have 4 rows, or 3 in the stream.
"""

import datetime
import pathlib
import sys

import numpy
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc

ROWS = range(8)


def table():
    floats = [[i, i + 0.5] for i in ROWS]
    names = ["even", "odd"]
    day = datetime.date(1970, 1, 1)
    columns = {
        "x": pa.array(floats, pa.list_(pa.float32())),
        "y": pa.array(ROWS, pa.int32()),
        "z": pa.array([-i for i in ROWS], pa.float64()),
        "text": [f"row {i}" for i in ROWS],
        "gap": pa.array([None if i == 6 else i for i in ROWS], pa.int64()),
        "large": pa.array(floats, pa.large_list(pa.float64())),
        "fixed": pa.array(floats, pa.list_(pa.float16(), 2)),
        "nested": pa.array([[[i], [i + 1]] for i in ROWS], pa.list_(pa.list_(pa.int16()))),
        "uneven": pa.array([[i] * (1 if i == 5 else 2) for i in ROWS], pa.list_(pa.float32())),
        "empty": pa.array([[i] * (0 if i == 5 else 1) for i in ROWS], pa.list_(pa.float32())),
        "tiny": pa.array(ROWS, pa.uint8()),
        "negative": pa.array([-i for i in ROWS], pa.int8()),
        "unsigned": pa.array([2**32 - 1 - i for i in ROWS], pa.uint32()),
        "huge": pa.array([2**63] * len(ROWS), pa.uint64()),
        "flag": pa.array([i % 3 == 0 for i in ROWS]),
        "kind": pa.array([names[i % 2] for i in ROWS]).dictionary_encode(),
        "code": pa.array([10 * (i // 2) for i in ROWS], pa.int64()).dictionary_encode(),
        "wide": pa.array([f"row {i}" for i in ROWS], pa.large_string()),
        "view": pa.array([f"row {i}" * (1 + 4 * (i % 2)) for i in ROWS], pa.string_view()),
        "one": pa.array([{"inner": i} for i in ROWS], pa.struct([("inner", pa.int64())])),
        "two": pa.array([{"a": i, "b": i} for i in ROWS]),
        "day": pa.array([day + datetime.timedelta(i) for i in ROWS], pa.date32()),
        "decimal": pa.array(ROWS, pa.decimal128(8, 2)),
        "pairs": pa.array([[(f"{i}", i)] for i in ROWS], pa.map_(pa.string(), pa.int32())),
        "none": pa.nulls(len(ROWS)),
        "last": pa.array(numpy.arange(8, dtype=numpy.int64)),
    }
    return pa.table(columns)


def main():
    folder = pathlib.Path(sys.argv[1])
    whole = table()
    for name, compression in [("plain.arrow", "uncompressed"), ("lz4.feather", "lz4"), ("zstd.feather", "zstd")]:
        pyarrow.feather.write_feather(whole, folder / name, compression, chunksize=4)
    # Each batch of the stream has another dictionary, or adds to the one before.
    schema = pa.schema([("kind", pa.dictionary(pa.int8(), pa.string())), ("y", pa.int32())])
    for name, deltas in [("stream.arrows", False), ("deltas.arrows", True)]:
        options = pyarrow.ipc.IpcWriteOptions(compression="zstd", emit_dictionary_deltas=deltas)
        with pyarrow.ipc.new_stream(folder / name, schema, options=options) as writer:
            for first in range(0, 8, 3):
                rows = [i for i in range(first, first + 3) if i in ROWS]
                known = [f"row {i}" for i in (range(rows[-1] + 1) if deltas else rows)]
                index = pa.array(rows if deltas else range(len(rows)), pa.int8())
                kind = pa.DictionaryArray.from_arrays(index, pa.array(known))
                writer.write_batch(pa.record_batch([kind, pa.array(rows, pa.int32())], schema=schema))
    # Images of one pixel: even rows have bytes, odd ones the path of a file.
    images = [
        {"bytes": None if i % 2 else b"P6\n1 1\n255\n" + bytes([i] * 3), "path": f"pixels/{i}.ppm" if i % 2 else None}
        for i in ROWS
    ]
    image = pa.array(images, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    paths = pa.table({"before": [f"row {i}" for i in ROWS], "image": image, "y": pa.array(ROWS, pa.int64())})
    pyarrow.feather.write_feather(paths, folder / "images.feather", "zstd", chunksize=4)


main()
