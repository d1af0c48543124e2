// Products of fp32 matrices as a layer's precision has them made.
//
// kBf16x3 and kBf16x6: with a = a1 + a2 + a3 in bf16 (SplitArgs), b likewise, a b is the sum of
//   kBf16x3   a2 b1, a1 b2, a1 b1                                    of two parts
//   kBf16x6   a3 b1, a1 b3, a2 b2, a2 b1, a1 b2, a1 b1               of three
// each a product of bf16 matrices that is summed in fp32, added up in this order: from the smallest to the largest
// (Henry, Tang, Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations",
// ARITH 2019). One sum over parts laid side by side along K is as accurate in this order, 2 to 15 times as inaccurate
// in the reverse (simulated for 64 to 4096 summands), and takes twice the memory.
//
// How far c may be from the exact sum, with u = 2^-24, S = sum over k of |a||b|, and K summands. Parts are at most
// |a2| <= 2^-8 |a|, |a3| <= 2^-17 |a|; of two parts |a - a1 - a2| <= 2^-17 |a|
// (all three up to 1 + 2^-7 times as large for numbers beyond bf16's largest).
//   kFp32     K u S: a rounding for each addition, in any order
//   kBf16x6   left out are a2 b3, a3 b2 and a3 b3: (2^-24 + 2^-34) S. Products of bf16 numbers are exact in fp32, so
//             the sum of each part product rounds K times at most, those of a1 b1 relative to (1 + 2^-8)^2 S, those of
//             a1 b2 and a2 b1 to 2^-8 (1 + 2^-8) S, the others to 2^-15 S together; adding them up rounds five times,
//             once relative to S and four times to 2^-7 S: (1 + 2^-5) (K + 2) u S in all
//   kBf16x3   left out are a2 b2 and what two parts leave: (2^-16 + 2^-17 + 2^-17 + 2^-34) S, which is reached where
//             all mantissas are unlucky at once, a fourth of it as a rule: (2^-15 + 2^-34) S + (1 + 2^-5) (K + 2) u S
//   kTf32     2^-10 (1 + 2^-12) S + K u S; twice the first where a GPU cuts operands off instead of rounding them
// Numbers of bf16 below 2^-126 count as 0 on units that flush subnormals: 2^-125 (|a| + |b|) a summand more, where
// parts are that small.
//
// Inf and NaN stay visible. A result is NaN or Inf wherever that of kFp32 is, and Inf where it is Inf, but NaN where
// both factors of a summand are Inf, or one is and the other is a number that bf16 rounds to 0. Operands up to the
// largest fp32 number are no exception. A sum within 2^-7 of that number may overflow, since a1 b1 may be above a b.
#pragma once

#include <functional>

#include "core/autograd/tape.h"
#include "core/kernels/gemm/args.h"

namespace mantissa {

// Where a product is made. make_part gives a bf16 tensor of a shape, for a part of an operand, whose memory is not used
// for anything else on the stream while the tensor lives.
struct ProductDevice {
  Backend& backend;
  Stream& stream;
  std::function<Tensor(const Shape& shape)> make_part;
};

// Backend::gemm(args); where a and b are fp32, as `products` says, with 4 or 6 bytes an element of a and b in parts. c
// is fp32 where they are. args.b_cache is used for kFp32 only.
void multiply(const ProductDevice& device, GemmArgs args, Fp32Products products);
// On the tape's stream; parts are in its arena for as long as the call lasts.
void multiply(Tape& tape, const GemmArgs& args, Fp32Products products);

}  // namespace mantissa
