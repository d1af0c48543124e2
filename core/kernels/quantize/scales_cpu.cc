// Scales of tensors: from their amax, and from a history of amaxes.
#include "core/kernels/check_args.h"
#include "core/kernels/quantize/args.h"
#include "core/kernels/reduction/update_decision.h"
#include "core/quant/scales.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/quantize/scales_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/kernels/quantize/narrow_rounding-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

void amax_kernel(const AmaxArgs& args) {
  dispatch(args.x.dtype(), [&]<typename T>() {
    const T* x = args.x.data<T>();
    parallel_blocks(args.x.numel(), [&](int64_t begin, int64_t n) {
      VectorAmax found;
      for_each_vector(n,
                      [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA { found.add(load(x + begin + i, count)); });
      found.add_to(args.record);
    });
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(amax_kernel);

void run(const AmaxArgs& args) {
  check_args(args);
  if (args.mode == GradientMode::kWrite) write_record(QuantizeRecord(), args.record);
  HWY_DYNAMIC_DISPATCH(amax_kernel)(args);
}

void run(const TensorScaleArgs& args) {
  check_args(args);
  const auto record = read_record<QuantizeRecord>(args.record);
  *args.scale.data<float>() = mantissa::tensor_scale(record.amax, args.max, 0, 1.0f);
}

void run(const DelayedScalesArgs& args) {
  const auto [ranks, tensors] = check_args(args);
  std::memset(args.mine.raw(), 0, args.mine.size_bytes());
  if (args.decision.defined() && read_record<UpdateDecision>(args.decision).held) return;
  const auto* const records = reinterpret_cast<const QuantizeRecord*>(args.records.raw());
  auto* const total = reinterpret_cast<QuantizeRecord*>(args.total.raw());
  auto* const history = reinterpret_cast<uint32_t*>(args.history.data<int32_t>());
  float* const scales = args.scales.data<float>();
  int32_t& entries = *args.entries.data<int32_t>();
  for (int64_t i = 0; i < tensors; ++i) {
    total[i] = fold_records(records + i, ranks, tensors);
    scales[i] = next_delayed_scale(args.options, history + i * args.options.history, entries, total[i].amax,
                                   args.maxima.data<float>()[i], scales[i]);
  }
  ++entries;
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
