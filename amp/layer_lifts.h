// Lifts: layers that compute in more precision than they are configured to, a level at a time.
//
//   operands rounded to 8 or 4 bits -> what the layer computes in;  fp16 -> bf16, which has the range;  bf16 -> fp32
//
// Attention rounds no operands: its levels are dtypes alone.
#pragma once

#include <map>
#include <string>

#include "core/autograd/precision.h"

namespace mantissa {

// Levels by layer path: "blocks.3.mlp.up". Others are as they are configured.
using LayerLifts = std::map<std::string, int, std::less<>>;

// `levels` levels up, as far as there are any.
void lift(Precision& precision, int levels);

// How many levels a linear layer, or an attention, of this precision can go up; 0: it is fp32.
int lift_room(const Precision& precision, Op op);

// What it computes in: "delayed:e4m3 in bf16", "fp32".
std::string describe_lift(const Precision& precision, Op op);

}  // namespace mantissa
