// Tensor-core products of one warp and asynchronous copies, for compute capability 8.0 and later. nvcc gets PTX
// instructions; a C++ compiler gets an emulation for a warp of emulated threads.
//
//   template <typename T> void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
//       c (16, 8) += a (16, 16) b (16, 8): mma.m16n8k16. T = BFloat16 or Float16, c fp32.
//   void load_matrices(uint32_t (&to)[4], const void* row);
//       Loads four matrices of 8 x 8 16-bit elements from shared memory: ldmatrix.x4. Lane i gives the address of row
//       i % 8 of matrix i / 8: 16 bytes, 16-byte aligned.
//   void load_matrices_transposed(uint32_t (&to)[4], const void* row);
//       The same, and transposes each matrix.
//   void copy_async(void* shared, const void* global, CopyExtent extent);
//       Copies 16 bytes, both sides 16-byte aligned: cp.async. kZeros writes zeros and does not read.
//   void commit_copies();
//       Makes a group of the copies that this thread started since the last call.
//   template <int kPending> void wait_for_copies();
//       Waits until all but the latest kPending groups of this thread have landed. Other threads see them after a
//       barrier.
//   template <typename T> uint32_t pack(float low, float high);
//       Rounds both to T (nearest even, Inf beyond the range); `low` goes into the lower half.
//   float exp2_flushed(float x);
//       2^x, to 2 ulp; 0 where the result is below the normal range.
//   int computed_here(int value);
//       Returns `value` but hides it from the compiler: values computed from it cannot be hoisted out of a loop.
//   void order_here();
//       Keeps the compiler from interleaving the code before with the code after, which would need more registers.
//
// All lanes of a warp call mma, load_matrices and order_here together. Fragments, with g = lane / 4 and t = lane % 4
// (PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type" and "ldmatrix"); a register holds two
// neighbouring elements, the first in its lower half:
//   a:  a[0] row g, columns 2t, 2t+1;  a[1] row g+8;  a[2] row g, columns 2t+8, 2t+9;  a[3] row g+8, those columns
//   b:  b0 rows 2t, 2t+1, column g;  b1 rows 2t+8, 2t+9, column g
//   c:  c[0], c[1] row g, columns 2t, 2t+1;  c[2], c[3] row g+8
//   load_matrices:  to[m] row g of matrix m, columns 2t, 2t+1;  transposed:  rows 2t, 2t+1, column g
#pragma once

#include <cstdint>

namespace mantissa::cuda {

enum class CopyExtent : uint8_t { kWhole, kZeros };

}  // namespace mantissa::cuda

#ifdef __CUDACC__
#include "core/cuda/device/native_mma.h"
#else
#include "core/cuda/emulation/mma.h"
#endif
