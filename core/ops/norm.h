// Norms over the last axis, each with an optional residual addition in front.
//   layer_norm  (x - mean) / sqrt(variance + epsilon) * weight + bias   Ba, Kiros, Hinton 2016
//   rms_norm    x / sqrt(mean(x^2) + epsilon) * weight                  Zhang & Sennrich 2019
//   head_norm   rms_norm of the query and key heads of attention        Henry, Dachapally, Pawar, Chen 2020
#pragma once

#include "core/kernels/attention/args.h"
#include "core/ops/add.h"

namespace mantissa {

// x (R, C); weight (C); bias (C) or nullptr. Statistics and arithmetic are fp32. The result (R, C) is rounded once to
// `out`. A model passes the compute dtype of the only consumer: it equals an fp32 result that the consumer casts.
Var layer_norm(Tape& tape, Var x, Parameter& weight, Parameter* bias, float epsilon, DType out);
Var rms_norm(Tape& tape, Var x, Parameter& weight, float epsilon, DType out);

// The norm of x.a + x.b in one pass over memory, and the sum. Gradients of both add up. Without x.b, the sum is x.a.
NormedSum add_layer_norm(Tape& tape, DeferredSum x, Parameter& weight, Parameter* bias, float epsilon, DType out);
NormedSum add_rms_norm(Tape& tape, DeferredSum x, Parameter& weight, float epsilon, DType out);

// RMS norm of each query head and each key head of qkv, which is packed as for attention(). It runs over the D values
// of a head. One weight (D) serves all query heads, the other all key heads. Values are unchanged; the result has the
// dtype of qkv. In place if the tape records nothing and the caller moves in the only reference.
Var head_norm(Tape& tape, Var qkv, const AttentionShape& shape, Parameter& query_weight, Parameter& key_weight,
              float epsilon);

}  // namespace mantissa
