// Digests of tensors: see digest.h. Bound by memory, x is read once. Sums of integers do not depend on their order:
// blocks add theirs by atomics.
#include "core/cuda/device/elementwise.h"
#include "core/kernels/digest/args.h"

namespace mantissa::cuda {
namespace {

constexpr int kThreads = 256;
constexpr size_t kScratchBytes = kThreads / kLanes * sizeof(double);

template <typename Item>
__global__ void __launch_bounds__(kThreads) digest_kernel(const Item* x, int64_t numel, Digest* record) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  Digest digest;
  const int64_t groups = digest_groups(numel);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < groups; i += threads) {
    digest.add(static_cast<uint64_t>(i), digest_group(x, numel, i));
  }
  digest.sum = block_reduce(digest.sum, Sum(), shared_memory<uint64_t>());
  digest.weighted = block_reduce(digest.weighted, Sum(), shared_memory<uint64_t>());
  if (threadIdx.x != 0) return;
  atomic_add(reinterpret_cast<int64_t*>(&record->sum), digest.sum);
  atomic_add(reinterpret_cast<int64_t*>(&record->weighted), digest.weighted);
}

template <typename Item>
void digest_as(const DigestArgs& args, CudaStream& stream) {
  const int64_t numel = args.x.numel();
  const LaunchShape shape{
      .grid = blocks_for(numel, kDigestRows * kThreads, stream), .block = kThreads, .shared_bytes = kScratchBytes};
  launch(digest_kernel<Item>, shape, stream.handle(), reinterpret_cast<const Item*>(args.x.raw()), numel,
         record_in<Digest>("digest", args.record));
}

}  // namespace

void run(const DigestArgs& args, CudaStream& stream) {
  check_args(args);
  if (args.x.numel() == 0) return;
  switch (size_bytes(args.x.dtype())) {
    case 4:
      return digest_as<uint32_t>(args, stream);
    case 2:
      return digest_as<uint16_t>(args, stream);
    default:
      return digest_as<uint8_t>(args, stream);
  }
}

}  // namespace mantissa::cuda
