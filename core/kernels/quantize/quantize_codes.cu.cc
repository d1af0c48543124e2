// Codes of e4m3 and e5m2 with one scale a tensor, as they lie and transposed, in one pass over the source: a block
// reads a tile of 64 x 128, rounds it in registers, stores its rows of codes and turns them over in shared memory, 64
// bytes of a column at a time.
//
// An element is multiplied by the scale in fp32 and converted once, which saturates what is finite; a product that is
// not finite is converted without, and stays visible.
#include "core/kernels/quantize/quantize_codes_cuda.h"

#include "core/cuda/device/device.h"
#include "core/cuda/device/float8.h"
#include "core/kernels/quantize/code_tile_cuda.h"

namespace mantissa::cuda {
namespace {

constexpr int kRowsOfWarp = 8, kBlocksAtOnce = 4;
using Turned = TurnedCodes<kRowsOfWarp>;
constexpr size_t kSharedWords = Turned::kWords + kTileWarps;  // the last for the record

template <typename From>
struct CodeOperands {
  From src;
  CodeMatrices to;
  Format format;
  const float* scale;
  QuantizeRecord* record;  // null: there is none
};

template <typename T>
__device__ __forceinline__ uint32_t code_of(float scaled) {
  return is_finite_magnitude(magnitude_bits(scaled)) ? narrow_saturated<T>(scaled).bits : narrow<T>(scaled).bits;
}

__device__ __forceinline__ uint32_t code_of(Format format, float scaled) {
  return format == Format::kE4M3 ? code_of<Float8E4M3>(scaled) : code_of<Float8E5M2>(scaled);
}

// With four blocks to a multiprocessor there are registers enough: left to itself, ptxas takes fewer and spills.
// Width: of the elements that are read at once. kWhole: words of codes are stored at once.
template <int Width, bool kWhole, typename From>
__global__ void __launch_bounds__(kTileThreads, kBlocksAtOnce) quantize_codes_kernel(CodeOperands<From> p) {
  WarpTile<kRowsOfWarp, Width> tile(blockIdx.x, p.to.columns);
  tile.load_from(p.src, p.to.rows, p.to.columns);
  uint32_t* const shared = shared_memory<uint32_t>();
  if (p.record != nullptr) {  // first: then no register holds what has become a code
    uint32_t amax = 0;
#pragma unroll
    for (int r = 0; r < kRowsOfWarp; ++r) amax = MaxBits()(amax, tile.amax_of_row(r));
    add_to_record(
        p.record, amax, [&] { return tile.count_non_finite(); }, shared + Turned::kWords);
  }
  const float scale = *p.scale;
  const Turned turned(shared);
  encode_tile<kWhole>(tile, p.to, turned, [&](int r, int k) { return code_of(p.format, tile.values[r][k] * scale); });
  if (p.to.transposed == nullptr) return;
  __syncthreads();
  turned.template store_to<kWhole>(p.to, tile.first_row(), tile.first_column());
}

template <int Width, bool kWhole, typename From>
void run(const QuantizeArgs& args, Rows extents, const From& src, CudaStream& stream) {
  const CodeOperands<From> p{
      .src = src,
      .to = code_matrices(args, extents),
      .format = args.format.format,
      .scale = args.scale.data<float>(),
      .record = args.record.defined() ? record_in<QuantizeRecord>("quantize", args.record) : nullptr};
  launch(quantize_codes_kernel<Width, kWhole, From>,
         {.grid = WarpTile<kRowsOfWarp, Width>::count(extents.rows, extents.columns),
          .block = kTileThreads,
          .shared_bytes = kSharedWords * sizeof(uint32_t)},
         stream.handle(), p);
}

}  // namespace

void quantize_to_codes(const QuantizeArgs& args, Rows extents, CudaStream& stream) {
  const bool vectors = all_aligned(args.src.raw()) && extents.columns % kLaneColumns == 0;
  // What units multiply has such sizes and addresses: the rest, one element at a time.
  if (vectors && takes_words(args.codes, extents.columns) && takes_words(args.transposed_codes, extents.rows)) {
    return dispatch(args.src.dtype(), [&]<typename T>() {
      run<kLaneColumns, true>(args, extents, static_cast<const T*>(args.src.data<T>()), stream);
    });
  }
  run<1, false>(args, extents, any_floats(args.src), stream);
}

}  // namespace mantissa::cuda
