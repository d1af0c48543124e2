// Gradient of a table of token embeddings.
#pragma once

#include "core/cuda/stream.h"
#include "core/kernels/embedding/args.h"

namespace mantissa::cuda {

// The part of embedding_backward that concerns d_token_table; the arguments have been checked.
void token_gradient(const EmbeddingBackwardArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
