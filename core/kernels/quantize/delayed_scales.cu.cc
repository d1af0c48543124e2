// A thread for each tensor: core/quant/scales.h with a history in device memory. Whether the step was held is
// read there, too. The number of entries, which all threads read, is counted up by a kernel of its own.
//
// Bound by the latency of 4 bytes for each entry of a history; small blocks spread the tensors over the device.
#include "core/kernels/quantize/args.h"

#include "core/cuda/device/device.h"
#include "core/cuda/grid.h"
#include "core/cuda/record_in.h"
#include "core/kernels/reduction/update_decision.h"

namespace mantissa::cuda {
namespace {

constexpr int kThreads = kLanes;

struct DelayedScales {
  const QuantizeRecord* records;  // (ranks, tensors)
  QuantizeRecord* mine;
  QuantizeRecord* total;
  uint32_t* history;
  float* scales;
  const float* maxima;
  const int32_t* entries;
  const UpdateDecision* decision;  // null: not held
  DelayedScalingOptions options;
  int64_t ranks, tensors;
};

__device__ __forceinline__ bool is_held(const UpdateDecision* decision) {
  return decision != nullptr && decision->held;
}

__global__ void __launch_bounds__(kThreads) delayed_scales_kernel(DelayedScales p) {
  const int64_t tensor = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (tensor >= p.tensors) return;
  if (!is_held(p.decision)) {
    const QuantizeRecord total = fold_records(p.records + tensor, p.ranks, p.tensors);
    p.total[tensor] = total;
    p.scales[tensor] = next_delayed_scale(p.options, p.history + tensor * p.options.history, *p.entries, total.amax,
                                          p.maxima[tensor], p.scales[tensor]);
  }
  p.mine[tensor] = {};
}

__global__ void count_entry_kernel(int32_t* entries, const UpdateDecision* decision) {
  if (!is_held(decision)) ++*entries;
}

}  // namespace

void run(const DelayedScalesArgs& args, CudaStream& stream) {
  constexpr const char* kOp = "delayed_scales";
  const auto [ranks, tensors] = check_args(args);
  int32_t* const entries = args.entries.data<int32_t>();
  const UpdateDecision* const decision =
      args.decision.defined() ? record_in<UpdateDecision>(kOp, args.decision) : nullptr;
  const DelayedScales p{.records = record_in<QuantizeRecord>(kOp, args.records),
                        .mine = record_in<QuantizeRecord>(kOp, args.mine),
                        .total = record_in<QuantizeRecord>(kOp, args.total),
                        .history = reinterpret_cast<uint32_t*>(args.history.data<int32_t>()),
                        .scales = args.scales.data<float>(),
                        .maxima = args.maxima.data<float>(),
                        .entries = entries,
                        .decision = decision,
                        .options = args.options,
                        .ranks = ranks,
                        .tensors = tensors};
  const auto blocks = static_cast<unsigned>((tensors + kThreads - 1) / kThreads);
  launch(delayed_scales_kernel, {.grid = blocks, .block = kThreads}, stream.handle(), p);
  launch(count_entry_kernel, {.grid = 1, .block = 1}, stream.handle(), entries, decision);
}

}  // namespace mantissa::cuda
