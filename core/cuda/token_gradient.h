// Gradient of a table of token embeddings.
#pragma once

#include "core/backend/kernel_args.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

// The part of embedding_backward that concerns d_token_table; the arguments have been checked.
void token_gradient(const EmbeddingBackwardArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
