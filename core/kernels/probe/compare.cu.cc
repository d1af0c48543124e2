// A block sums one chunk of elements, its threads in a fixed order; one block more adds the chunks. Chunks depend on
// the number of elements alone: the same bits in every run. Bound by memory: both operands are read once.
#include "core/kernels/probe/args.h"

#include "core/cuda/device/elementwise.h"
#include "core/cuda/device/device.h"

namespace mantissa::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kGranule = int64_t{16} * kThreads;
constexpr int64_t kMaxChunks = 1024;
constexpr size_t kScratchBytes = kThreads / kLanes * sizeof(double);

// Of all threads of the block, in each of them.
__device__ __forceinline__ ErrorSums sum_of_block(ErrorSums sums) {
  sums.elements = block_reduce(sums.elements, Sum(), shared_memory<int64_t>());
  sums.non_finite = block_reduce(sums.non_finite, Sum(), shared_memory<int64_t>());
  double* const scratch = shared_memory<double>();
  sums.reference_squares = block_reduce(sums.reference_squares, Sum(), scratch);
  sums.squares = block_reduce(sums.squares, Sum(), scratch);
  sums.products = block_reduce(sums.products, Sum(), scratch);
  sums.error_squares = block_reduce(sums.error_squares, Sum(), scratch);
  return sums;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) compare_chunks_kernel(const T* x, const float* reference, int64_t numel,
                                                                  int64_t chunk_elements, ErrorSums* chunks) {
  const int64_t begin = blockIdx.x * chunk_elements;
  const int64_t end = std::min(begin + chunk_elements, numel);
  ErrorSums sums;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) sums.add(widen(x[i]), reference[i]);
  sums = sum_of_block(sums);
  if (threadIdx.x == 0) chunks[blockIdx.x] = sums;
}

// One block: record += chunks.
__global__ void __launch_bounds__(kThreads)
    merge_errors_kernel(const ErrorSums* chunks, int64_t count, ErrorSums* record) {
  ErrorSums sums;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sums += chunks[i];
  sums = sum_of_block(sums);
  if (threadIdx.x == 0) *record += sums;
}

}  // namespace

void run(const CompareArgs& args, CudaStream& stream) {
  check_args(args);
  auto* const record = record_in<ErrorSums>("compare", args.record);
  if (args.mode == GradientMode::kWrite) set_bytes_async(record, 0, sizeof(ErrorSums), stream.handle());
  const int64_t numel = args.x.numel();
  if (numel == 0) return;
  const int64_t granules = (numel + kGranule - 1) / kGranule;
  const int64_t chunk_elements = kGranule * ((granules + kMaxChunks - 1) / kMaxChunks);
  const int64_t count = (numel + chunk_elements - 1) / chunk_elements;
  auto* const chunks = reinterpret_cast<ErrorSums*>(stream.workspace(static_cast<size_t>(count) * sizeof(ErrorSums)));
  const LaunchShape shape{.grid = static_cast<unsigned>(count), .block = kThreads, .shared_bytes = kScratchBytes};
  dispatch(args.x.dtype(), [&]<typename T>() {
    launch(compare_chunks_kernel<T>, shape, stream.handle(), args.x.data<T>(), args.reference.data<float>(), numel,
           chunk_elements, chunks);
  });
  const LaunchShape one{.grid = 1, .block = kThreads, .shared_bytes = kScratchBytes};
  launch(merge_errors_kernel, one, stream.handle(), chunks, count, record);
}

}  // namespace mantissa::cuda
