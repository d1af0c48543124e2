// Megatron's indexed data sets: NAME.bin holds tokens and nothing else, NAME.idx says what they are.
//
//   offset  content                               offset  content
//   0       "MMIDIDX\0\0", u64 version 1          34      i32 length of each sequence (S)
//   17      u8 code of the tokens' type           ...     i64 offset of each sequence in NAME.bin (S)
//   18      u64 S sequences, u64 D boundaries     ...     i64 first sequence of each document, at last S (D)
//
// Source: megatron/core/datasets/indexed_dataset.py of NVIDIA's Megatron-LM. Refuses several modalities.
#pragma once

#include "core/data/token_file.h"

namespace mantissa {

inline constexpr const char* kMegatronIndexSuffix = ".idx";
inline constexpr const char* kMegatronDataSuffix = ".bin";

bool has_megatron_index(const std::string& data_path);  // whether an index lies beside this .bin file

// Reads the index beside this .bin file. DataError naming the index and its first entry that is not as above or does
// not fit the .bin file.
TokenFile read_megatron_index(InputFile data);

}  // namespace mantissa
