// The random Hadamard transform, and the scales of tensors. Apart from quantize.cu.cc, in whose unit ptxas would spill.
#include "core/quant/scales.h"
#include "core/cuda/device/elementwise.h"
#include "core/kernels/quantize/args.h"
#include "core/kernels/quantize/tile_cuda.h"
#include "core/kernels/reduction/update_decision.h"

namespace mantissa::cuda {
namespace {

// ---- hadamard: 16 rows at a time, four columns of them in a thread's registers: butterflies between rows, no exchange
// with other threads. Bound by memory: each operand is read or written once.

constexpr int kLength = static_cast<int>(kHadamardLength);
constexpr int kWidth = 4;  // columns: with more, 16 rows would not fit into registers

template <typename X, typename Y>
struct Hadamard {
  const X* x;
  Y* y;
  int64_t columns;

  // `group`: 16 rows.
  template <int Width>
  __device__ __forceinline__ void apply(int64_t group, int64_t column) const {
    const int64_t begin = group * kLength * columns + column;
    float values[kLength][Width];
#pragma unroll
    for (int row = 0; row < kLength; ++row) {
      load<Width>(x + begin + row * columns, values[row]);
#pragma unroll
      for (int k = 0; k < Width; ++k) {
        if (hadamard_negates(row)) values[row][k] = -values[row][k];
      }
    }
#pragma unroll
    for (int distance = 1; distance < kLength; distance *= 2) {
#pragma unroll
      for (int row = 0; row < kLength; ++row) {
        if ((row & distance) != 0) continue;
#pragma unroll
        for (int k = 0; k < Width; ++k) {
          const float a = values[row][k], b = values[row + distance][k];
          values[row][k] = a + b;
          values[row + distance][k] = a - b;
        }
      }
    }
#pragma unroll
    for (int row = 0; row < kLength; ++row) {
#pragma unroll
      for (int k = 0; k < Width; ++k) values[row][k] *= 0.25f;
      store<Width>(y + begin + row * columns, values[row]);
    }
  }
};

// ---- amax: the largest magnitude and the number of NaN and Inf. Bound by memory: x is read once, 16 bytes at a time
// where it is aligned; only blocks with non-finite elements read it twice.

constexpr int kThreads = 256;

template <int Width, typename T>
__global__ void __launch_bounds__(kThreads) amax_kernel(const T* x, int64_t numel, QuantizeRecord* record) {
  uint32_t amax = 0;
  for_each_element<Width>(x, numel, [&](float value) { amax = MaxBits()(amax, magnitude_bits(value)); });
  const auto count = [&] {
    int bad = 0;
    for_each_element<Width>(x, numel, [&](float value) { bad += non_finite(value); });
    return bad;
  };
  add_to_record(record, amax, count, shared_memory<uint32_t>());
}

__global__ void tensor_scale_kernel(const QuantizeRecord* record, float max, float* scale) {
  *scale = mantissa::tensor_scale(record->amax, max, 0, 1.0f);
}

// ---- delayed_scales: a thread for each tensor runs core/quant/scales.h with a history in device memory,
// unless the step was held, which is read there too. A kernel of its own counts up the number of entries, which all
// threads read. Bound by the latency of 4 bytes for each entry of a history; small blocks spread the tensors over the
// device.

struct DelayedScales {
  const QuantizeRecord* records;  // (ranks, tensors)
  QuantizeRecord *mine, *total;
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

__global__ void __launch_bounds__(kLanes) delayed_scales_kernel(DelayedScales p) {
  const int64_t tensor = static_cast<int64_t>(blockIdx.x) * kLanes + threadIdx.x;
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

void run(const HadamardArgs& args, CudaStream& stream) {
  const Rows rows = check_args(args);
  dispatch(args.x.dtype(), args.y.dtype(), [&]<typename X, typename Y>() {
    const Hadamard<X, Y> operation{args.x.data<X>(), args.y.data<Y>(), rows.columns};
    run_rowwise<kWidth>(
        operation,
        {.rows = rows.rows / kLength, .columns = rows.columns, .alignment = alignment_of(operation.x, operation.y)},
        stream);
  });
}

void run(const AmaxArgs& args, CudaStream& stream) {
  check_args(args);
  auto* const record = start_record<QuantizeRecord>("amax", args.record, args.mode, stream);
  const int64_t numel = args.x.numel();
  if (numel == 0) return;
  dispatch(args.x.dtype(), [&]<typename T>() {
    const T* const x = args.x.data<T>();
    const bool vectors = all_aligned(x);
    const LaunchShape shape{.grid = blocks_for(numel, kThreads * (vectors ? kVectorWidth<T> : 1), stream),
                            .block = kThreads,
                            .shared_bytes = kThreads / kLanes * sizeof(uint32_t)};
    launch(vectors ? amax_kernel<kVectorWidth<T>, T> : amax_kernel<1, T>, shape, stream.handle(), x, numel, record);
  });
}

void run(const TensorScaleArgs& args, CudaStream& stream) {
  check_args(args);
  launch(tensor_scale_kernel, {.grid = 1, .block = 1}, stream.handle(),
         record_in<QuantizeRecord>("tensor_scale", args.record), args.max, args.scale.data<float>());
}

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
  const auto blocks = static_cast<unsigned>(divide_up(tensors, kLanes));
  launch(delayed_scales_kernel, {.grid = blocks, .block = kLanes}, stream.handle(), p);
  launch(count_entry_kernel, {.grid = 1, .block = 1}, stream.handle(), entries, decision);
}

}  // namespace mantissa::cuda
