// What a causal model thinks of the token after a text.
#pragma once

#include "core/autograd/tape.h"
#include "models/model.h"

namespace mantissa {

// ConfigError for a model that does not predict the next token.
void require_causal(const Model& model, const ModelConfig& config);

// How many positions a text of `length` tokens is computed with: a multiple of 64, at most `context`. What devices
// prepare for a shape, up to the choice of kernels by trial, is then prepared for a few lengths and not for each.
int64_t padded_length(int64_t length, int64_t context);

// (vocab) fp32: the logits of the token after the first `length` of `tokens`, which hold padded_length() at least; what
// fills up the rest is seen by no position of the text. `tape` is for evaluation: the other positions, of which the
// head makes nothing, would take no gradient.
Tensor next_logits(Tape& tape, Model& model, const Tensor& tokens, int64_t length, const ModelConfig& config);

}  // namespace mantissa
