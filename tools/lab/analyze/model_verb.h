// `mantissa analyze model`: the effects of precision on a model, at the start of its training and later.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "tools/lab/analyze/model_analysis.h"

namespace mantissa {

struct ModelOutputs {
  std::string html, json;  // files; empty: none
};

// The report's figures. Any number may be null, any list empty or absent; shares are 0 ... 1 of elements:
//
//   version 1, title
//   setting: compute, recipe, wire, ranks, batches, model
//   verdict: level "good", "attention" or "bad"; lines of text, the most important first
//   formats: of each name ("e4m3"), max, min_normal, min_subnormal
//   checkpoints, in the order of training: of each name, step (of the weights), steps (analysed), loss, skipped,
//     learning_rate_instead_of_0 and ..._from_step, updates_are_known, and
//     tensors: of each role ("activation", "weight", "gradient", "parameter gradient", "update", "wire"), layer, format
//       ("delayed:e4m3"), scale_exponent (the value times 2^this is stored), elements, zeros and non_finite (counts),
//       underflow, subnormal, saturated, amax, amax_by_step, histogram {first_exponent, counts: of
//       2^(first_exponent + i) <= |x| < twice that}, stagnant {format of weights: share of updates below half an ulp}
//     products: of each product ("fprop", "dgrad", "wgrad"), layer, formats, snr_db and cosine (by step),
//       snr_db_of_all, noise_ratio (variance of rounding over that of mini-batches), equivalent_batch_loss
//     wire: of each parameter, snr_db and cosine against the sum in fp32
//     loss_scale: exponents, underflow, overflow; recommended {exponent, percentile, headroom, underflow,
//       underflow_by_step, underflow_largest, overflow} or null and why_none; skipped
//     updates, wire_total: the stagnant shares, and format, snr_db and cosine, of all parameters together
nlohmann::json to_json(const ModelAnalysis& analysis);
// The verdict, then tables by layer for each checkpoint.
std::string model_text(const nlohmann::json& figures);
extern const std::string_view kModelPage;  // for page_document(); written by page_scripts()

// Runs on one rank or, under mpirun or srun, on several. Rank 0 prints the report to standard output and writes the
// files. Returns the exit code.
int model_verb(const ModelRequest& request, const ModelOutputs& outputs);

}  // namespace mantissa
