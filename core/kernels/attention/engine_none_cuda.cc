// Builds without cuDNN's headers, and the emulated GPU.
#include "core/kernels/attention/engine_cuda.h"

namespace mantissa::cuda {

std::unique_ptr<AttentionEngine> open_attention_engine(int) {
  throw ConfigError(
      "this program knows no cuDNN: it was built without its headers (9.8 or newer), or for the emulated GPU");
}

}  // namespace mantissa::cuda
