// Kernels that only convert 8-bit floats.
#pragma once

#include "core/cuda/stream.h"
#include "core/tensor/format.h"

namespace mantissa::cuda {

// Decodes codes[i] to values[i] (fp32, on the device). format: kE4M3 or kE5M2.
void widen_codes(Format format, const uint8_t* codes, float* values, int64_t count, CudaStream& stream);
// Encodes values[i] as codes[i].
void narrow_values(Format format, Saturation saturation, const float* values, uint8_t* codes, int64_t count,
                   CudaStream& stream);

}  // namespace mantissa::cuda
