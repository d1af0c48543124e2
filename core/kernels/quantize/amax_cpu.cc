#include "core/kernels/quantize/args.h"

#include "core/kernels/check_args.h"
#include "core/kernels/quantize/amax_record_cpu.h"
#include "core/quant/scales.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/quantize/amax_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/kernels/quantize/narrow_rounding-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

template <typename T>
void add_block(const T* x, int64_t n, QuantizeRecord* record) {
  VectorAmax found;
  for_each_vector(n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA { found.add(load(x + i, count)); });
  add_to(record, found.amax(), found.non_finite());
}

void amax_kernel(const AmaxArgs& args) {
  dispatch(args.x.dtype(), [&]<typename T>() {
    const T* x = args.x.data<T>();
    parallel_blocks(args.x.numel(),
                    [&](int64_t begin, int64_t n) { add_block(x + begin, n, amax_record(args.record)); });
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(amax_kernel);

void run(const AmaxArgs& args) {
  check_args(args);
  if (args.mode == GradientMode::kWrite) *amax_record(args.record) = {};
  HWY_DYNAMIC_DISPATCH(amax_kernel)(args);
}

void run(const TensorScaleArgs& args) {
  check_args(args);
  const auto record = read_record<QuantizeRecord>(args.record);
  *args.scale.data<float>() = mantissa::tensor_scale(record.amax, args.max, 0, 1.0f);
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
