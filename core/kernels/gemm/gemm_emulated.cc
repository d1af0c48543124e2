// Matrix multiplication on the emulated GPU: the CPU's kernels, queued on a stream.
#include <cmath>
#include <limits>

#include "core/cuda/emulation/stream_queue.h"
#include "core/kernels/gemm/gemm_cuda.h"
#include "core/kernels/gemm/steps.h"
#include "core/tensor/half.h"

namespace mantissa::cuda {
namespace {

EmulatedGemm replacement;

// The same bytes, not owned: queued work does not keep memory alive, as on a GPU.
Tensor borrow(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  return Tensor(std::make_shared<Storage>(tensor.raw(), tensor.size_bytes(), tensor.device(), nullptr), tensor.dtype(),
                tensor.shape());
}

Tensor make_on_host(DType dtype, Shape shape, Device device) {
  const auto bytes = static_cast<size_t>(shape.numel() * size_bytes(dtype));
  auto* const data = new std::byte[bytes];
  return Tensor(std::make_shared<Storage>(data, bytes, device, [data] { delete[] data; }), dtype, shape);
}

struct BlockScales {
  Tensor scales{};  // undefined: the codes have none
  BlockScaleLayout layout = BlockScaleLayout::kRowBlocks128;

  float at(Shape codes, int64_t row, int64_t column) const {
    if (!scales.defined()) return 1.0f;
    const int64_t index = block_scale_index(layout, codes[0], codes[1], row, column / block_length(layout));
    if (layout != BlockScaleLayout::kMicroTiles) return scales.data<float>()[index];
    const uint8_t exponent = scales.data<uint8_t>()[index];  // e8m0
    return exponent == 0xff ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, exponent - 127);
  }
};

// The values of the codes, in a dtype that represents them exactly.
Tensor decoded(const Tensor& codes, Format format, const BlockScales& scales, DType dtype) {
  Tensor values = make_on_host(dtype, codes.shape(), codes.device());
  dispatch(dtype, [&]<typename T>() {
    float values_of[256];
    for (uint32_t code = 0; code < 256; ++code) values_of[code] = decode(format, code);
    const uint8_t* code = codes.data<uint8_t>();
    T* value = values.data<T>();
    for (int64_t r = 0; r < codes.dim(0); ++r) {
      for (int64_t c = 0; c < codes.dim(1); ++c) {
        *value++ = from_float<T>(values_of[*code++] * scales.at(codes.shape(), r, c));
      }
    }
  });
  return values;
}

Tensor as_fp16(const Tensor& bias) {
  Tensor rounded = make_on_host(DType::kF16, bias.shape(), bias.device());
  dispatch(bias.dtype(), [&]<typename T>() {
    for (int64_t i = 0; i < bias.numel(); ++i) {
      rounded.data<Float16>()[i] = from_float<Float16>(to_float(bias.data<T>()[i]));
    }
  });
  return rounded;
}

// fp16 represents codes without block scales, and bf16 those with block scales. Only bf16 products are not rounded to
// fp16.
void multiply_codes(GemmArgs args) {
  const bool rounds_itself = args.c.dtype() == DType::kF16 && args.has_block_scales();
  const DType dtype = args.c.dtype() == DType::kF16 && !rounds_itself ? DType::kF16 : DType::kBF16;
  args.a = decoded(args.a, args.a_format, {args.a_block_scales, args.a_layout}, dtype);
  args.b = decoded(args.b, args.b_format, {args.b_block_scales, args.b_layout}, dtype);
  args.a_block_scales = args.b_block_scales = Tensor();
  if (!rounds_itself) return cpu::run(args);
  const Tensor c = args.c, sums = make_on_host(DType::kF32, c.shape(), c.device());
  args.c = sums;
  if (args.bias.defined()) args.bias = as_fp16(args.bias);
  cpu::run(args);
  for (int64_t i = 0; i < c.numel(); ++i) c.data<Float16>()[i] = from_float<Float16>(sums.data<float>()[i]);
}

}  // namespace

void replace_emulated_gemm(EmulatedGemm multiply) { replacement = std::move(multiply); }

void run(const GemmArgs& args, CudaStream& stream) {
  check_args(args);
  if (replacement) return replacement(args, stream);
  const auto run_on_stream = [&](const auto& step) { run(step, stream); };
  if (args.activation != GemmActivation::kNone) return gemm_in_steps(args, run_on_stream, run_on_stream);
  if (args.bias_gradient.defined()) return gemm_then_bias_gradient(args, run_on_stream, run_on_stream);
  GemmArgs borrowed = args;
  for (Tensor GemmArgs::*operand : {&GemmArgs::a, &GemmArgs::b, &GemmArgs::c, &GemmArgs::bias, &GemmArgs::a_scale,
                                    &GemmArgs::b_scale, &GemmArgs::a_block_scales, &GemmArgs::b_block_scales}) {
    borrowed.*operand = borrow(args.*operand);
  }
  emulation::enqueue(stream.handle(),
                     [borrowed] { borrowed.a.dtype() == DType::kU8 ? multiply_codes(borrowed) : cpu::run(borrowed); });
}

std::string gemm_unusable_reason() { return ""; }
std::string describe_gemm() { return "GEMM on the host"; }
Fp8GemmSupport fp8_gemm_support(const DeviceProperties&) { return Fp8GemmSupport::kAll; }
std::string describe_fp8_gemm_support(const DeviceProperties&) { return describe_gemm(); }

}  // namespace mantissa::cuda
