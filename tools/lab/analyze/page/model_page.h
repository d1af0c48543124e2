// The page of `mantissa analyze model`: one HTML file that shows what was found, offline.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace mantissa {

// A complete document, UTF-8: style, script and figures are in it, and nothing is loaded from elsewhere. The version 1
// that it reads (every number may be null, every list empty or absent; shares are 0 ... 1 of elements):
//
//   version 1, title
//   setting: compute, recipe, wire, ranks, batches, model
//   verdict: level "good", "attention" or "bad"; lines: text, the most important first
//   formats: of each name ("e4m3"), max, min_normal, min_subnormal
//   checkpoints, in the order of training: of each name, step (of the weights), steps (numbers of those analysed) and
//     tensors: of each role ("activation", "weight", "gradient", "parameter gradient", "update", "wire"), layer, format
//       ("delayed:e4m3"), scale_exponent (what is stored is the value times 2^this), elements, zeros and non_finite
//       (numbers of elements), underflow, subnormal, saturated, amax, amax_by_step (one for each of steps), histogram
//       {first_exponent, counts: of 2^(first_exponent + i) <= |x| < twice that}, stagnant {format of weights: share of
//       updates below half an ulp}
//     products: of each product ("fprop", "dgrad", "wgrad"), layer, formats, snr_db and cosine (of each of steps),
//       noise_ratio (variance of quantisation by that of mini-batches), equivalent_batch_loss
//     wire: of each parameter, snr_db, cosine, against the sum in fp32
//     loss_scale: exponents, and for each of them underflow and overflow; recommended {exponent, percentile, headroom,
//       underflow, overflow}
//
// Text stays text whatever is in it. Bytes that are no UTF-8 become U+FFFD.
std::string model_page(const nlohmann::json& analysis);

}  // namespace mantissa
