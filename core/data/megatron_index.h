// Megatron's indexed data sets: NAME.bin holds tokens and nothing else, NAME.idx says what they are.
//
//   offset  content                               offset  content
//   0       "MMIDIDX\0\0", u64 version 1          34      i32 length of each sequence (S)
//   17      u8 code of the tokens' type           ...     i64 offset of each sequence in NAME.bin (S)
//   18      u64 S sequences, u64 D boundaries     ...     i64 first sequence of each document, at last S (D)
//
// Source: megatron/core/datasets/indexed_dataset.py of NVIDIA's Megatron-LM. Refuses several modalities.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mantissa {

inline constexpr const char* kMegatronIndexSuffix = ".idx";
inline constexpr const char* kMegatronDataSuffix = ".bin";

struct MegatronIndex {
  int token_bytes = 2;
  int64_t limit = 0;                 // values of the type are below
  int64_t count = 0;                 // of tokens
  std::vector<int64_t> documents{};  // first token of each non-empty document
};

bool has_megatron_index(const std::string& data_path);  // whether an index lies beside this .bin file

// Reads the index beside this .bin file, which has `data_bytes`. DataError naming the index and its first wrong entry.
MegatronIndex read_megatron_index(const std::string& data_path, uint64_t data_bytes);

}  // namespace mantissa
