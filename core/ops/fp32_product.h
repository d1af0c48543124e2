// Products of fp32 matrices, made as the layer's precision says.
//
// kBf16x3 and kBf16x6: split a = a1 + a2 + a3 into bf16 parts (SplitArgs), and b likewise. Then a b is the sum of
//   kBf16x3   a2 b1, a1 b2, a1 b1                                    two parts
//   kBf16x6   a3 b1, a1 b3, a2 b2, a2 b1, a1 b2, a1 b1               three parts
// Each is a product of bf16 matrices, summed in fp32. They are added in this order, from the smallest to the largest
// (Henry, Tang, Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations",
// ARITH 2019). A single sum over parts concatenated along K is as accurate in this order, 2 to 15 times less accurate
// in the reverse (simulated for 64 to 4096 summands), and takes twice the memory.
//
// Error bounds on c, with u = 2^-24, S = sum over k of |a||b|, and K summands. Parts satisfy |a2| <= 2^-8 |a|,
// |a3| <= 2^-17 |a|; two parts leave |a - a1 - a2| <= 2^-17 |a|
// (all three up to 1 + 2^-7 times as large for numbers beyond bf16's largest).
//   kFp32     K u S: one rounding per addition, in any order
//   kBf16x6   omits a2 b3, a3 b2 and a3 b3: (2^-24 + 2^-34) S. Products of bf16 numbers are exact in fp32, so each part
//             product rounds its sum at most K times: relative to (1 + 2^-8)^2 S for a1 b1, to 2^-8 (1 + 2^-8) S for
//             a1 b2 and a2 b1, to 2^-15 S for the others together. Adding the part products rounds five times: once
//             relative to S, four times to 2^-7 S. Total: (1 + 2^-5) (K + 2) u S
//   kBf16x3   omits a2 b2 and the rest beyond two parts: (2^-16 + 2^-17 + 2^-17 + 2^-34) S, reached only where all
//             mantissas are unlucky at once, usually a fourth of it. Total: (2^-15 + 2^-34) S + (1 + 2^-5) (K + 2) u S
//   kTf32     2^-10 (1 + 2^-12) S + K u S; twice the first term where a GPU truncates operands instead of rounding them
// Units that flush subnormals treat bf16 numbers below 2^-126 as 0. For parts that small, this adds 2^-125 (|a| + |b|)
// per summand.
//
// Inf and NaN stay visible. The result is NaN or Inf wherever kFp32's is. If kFp32's is Inf, it is Inf, with one
// exception: it is NaN if both factors of a summand are Inf, or if one is Inf and bf16 rounds the other to 0. This
// holds for operands up to the largest fp32 number. A sum within 2^-7 of that number may overflow, since a1 b1 may
// exceed a b.
#pragma once

#include "core/autograd/tape.h"

namespace mantissa {

struct GemmArgs;

// The device of a product. make_part(shape) allocates a bf16 tensor for a part of an operand, unshared while it lives.
struct ProductDevice {
  Backend& backend;
  Stream& stream;
  std::function<Tensor(const Shape& shape)> make_part;
};

// Runs GemmArgs. If a and b are fp32, `products` determines the method: c must be fp32, and parts take 4 or 6
// bytes per element of a and b. args.b_cache is then used for kFp32 only.
void multiply(const ProductDevice& device, GemmArgs args, Fp32Products products);
// On the tape's stream. Parts stay in its arena during the call.
void multiply(Tape& tape, const GemmArgs& args, Fp32Products products);

}  // namespace mantissa
