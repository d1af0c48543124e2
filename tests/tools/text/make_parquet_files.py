"""Writes the Parquet files of parquet_reader_test.cc, each of a few kB, and the texts that they hold.

    python3 tests/tools/text/make_parquet_files.py      (needs pyarrow; made with version 26)
"""
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

OUT = pathlib.Path(__file__).parent / "reference"


def texts():
    words = ["the", "gradient", "of", "a", "loss", "é", "漢字", "🙂", "line\nbreak", ""]
    made = []
    for i in range(120):
        text = " ".join(words[(i * 7 + j * j) % len(words)] for j in range(i % 9))
        made.append(None if i % 11 == 5 else text)
    return made + ["again"] * 40 + ["x" * 3000]


def main():
    OUT.mkdir(exist_ok=True)
    rows = texts()
    table = pa.table({
        "id": pa.array(range(len(rows)), pa.int64()),
        "text": pa.array(rows, pa.string()),
        "meta": pa.array([{"url": "u", "tags": ["a"]}] * len(rows)),
        "large": pa.array(rows, pa.large_string()),
    })
    no_nulls = pa.schema([pa.field("text", pa.string(), nullable=False)])
    required = pa.Table.from_arrays([pa.array([row or "" for row in rows])], schema=no_nulls)
    small = {"row_group_size": 70, "data_page_size": 400, "write_batch_size": 16, "write_statistics": False}
    for name, options in {
            "plain_v1": {"compression": "none", "use_dictionary": False, "data_page_version": "1.0"},
            "dictionary_v1": {"compression": "snappy", "use_dictionary": True, "data_page_version": "1.0"},
            "plain_v2": {"compression": "zstd", "use_dictionary": False, "data_page_version": "2.0"},
            "dictionary_v2": {"compression": "gzip", "use_dictionary": True, "data_page_version": "2.0"},
            "snappy_v2": {"compression": "snappy", "use_dictionary": False, "data_page_version": "2.0"},
            "delta": {"compression": "zstd", "use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}},
            "brotli": {"compression": "brotli"},
    }.items():
        pq.write_table(table if name != "delta" else table.select(["text"]), OUT / f"{name}.parquet", **small, **options)
    pq.write_table(required, OUT / "required.parquet", compression="gzip", **small)
    pq.write_table(table.select(["text"]).slice(0, 0), OUT / "empty.parquet")
    pq.write_table(pa.table({"text": pa.nulls(3)}), OUT / "nulls.parquet")
    (OUT / "texts.bin").write_bytes(b"".join((row or "").encode() + b"\0" for row in rows))


if __name__ == "__main__":
    main()
