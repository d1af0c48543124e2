#!/usr/bin/env python3
"""Writes data/megatron_u16 and data/megatron_i32 (.bin and .idx) with Megatron's own writer.

    pip install megatron-core==0.16.1 torch numpy
    python3 tests/core/data/make_megatron_data.py

megatron_index_test.cc reads them and knows the rule of the tokens: token k is (7 * k * k + 3) % vocabulary.
"""

import pathlib

import numpy
import torch
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

# Lengths of the sequences of each document.
DOCUMENTS = [[3, 2], [5], [1], [4, 4, 1]]


def write(name: str, vocab: int, dtype: type) -> None:
    prefix = pathlib.Path(__file__).parent / "data" / name
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    first = 0
    for lengths in DOCUMENTS:
        tokens = [(7 * k * k + 3) % vocab for k in range(first, first + sum(lengths))]
        builder.add_document(torch.tensor(tokens, dtype=torch.int64), lengths)
        first += sum(lengths)
    builder.finalize(f"{prefix}.idx")


write("megatron_u16", 1000, numpy.uint16)
write("megatron_i32", 100000, numpy.int32)
