// The order of weights in model files of llm.c. All tensors of a kind lie side by side, for all layers in a row.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/model_config.h"

namespace mantissa {

enum class LlmcLayout : uint8_t {
  kGpt2,       // write_tensors() in train_gpt2.py
  kLlama,      // write_tensors() in train_llama3.py: the head last
  kLlamaCuda,  // the same of the branch "llama3", as train_llama3.cu reads it: the head second, with biases of zero
};

// Rows that lie together in a file.
struct LlmcPiece {
  enum class Content : uint8_t {
    kWeights,
    kPadding,  // of the vocabulary: any numbers
    kZeros,    // biases of layers that have none
  };

  std::string parameter;  // by its name in models/
  std::vector<int64_t> shape;
  Content content = Content::kWeights;
  int64_t first_row = 0;         // of the parameter
  int64_t interleaved_head = 0;  // as ParameterParts::Part

  int64_t numel() const;
};

// All of a file, in order. `padded_vocab`: rows of the token table, for GPT-2. A Llama's file has a head in any case:
// for a tied one the token table again.
std::vector<LlmcPiece> llmc_pieces(LlmcLayout layout, const ModelConfig& model, int64_t padded_vocab);

}  // namespace mantissa
