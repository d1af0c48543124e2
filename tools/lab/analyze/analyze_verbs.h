// Verbs of `mantissa analyze`. Each prints its report to standard output and returns the exit code.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/lab/analyze/model_analysis.h"
#include "tools/run/report/report.h"

namespace mantissa {

// `formats`: range and error of each number format, and how fast the device multiplies it.
struct FormatsRequest {
  std::string device = "auto";  // a backend's name, or "auto"
  int64_t samples = 65536;      // values tried for each size
  bool products = true;         // measure GEMM rates
  bool full = false;            // print every table, not only ranges and the fastest products
  std::string html{}, json{};   // output files; empty: none
};

// The report's figures:
//   device, samples
//   formats: for each, name, rounded_by ("device" or "emulation"), block_length (values to a scale; 0: no scale or a
//     single one), errors and, without scales, range, difference (from the format's definition; may be empty) and
//     underflow
//   gemm: for each operand dtype, peak_flops, peak_source and products (size, flops, share_of_peak)
Json analyze_formats(const FormatsRequest& request);
// `full`: also errors by decade, what gradients lose, and products by size.
std::string formats_text(const Json& figures, bool full);
extern const std::string_view kFormatsPage;  // for page_document(); written by page_scripts()

int formats_verb(const FormatsRequest& request);

// `probes`: a run's probe rows as comma-separated values, also during the run.
struct ProbesRequest {
  std::string run;           // a run folder, or a probe file
  std::string role, tensor;  // rows of this role, of tensors whose name contains this; empty: all
  int64_t step = 0;          // rows of this step; 0: all
  // Adds the losses of another format, at a scale of 2^exponent; empty: none.
  std::string format;
  int exponent = 0;
  std::string sql;  // a query to print instead of rows; empty: none
};

// Prints a line of names, then a line for each row.
int probes_verb(const ProbesRequest& request);

// `model`: the effects of precision on a model, at the start of its training and later.
//
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
Json to_json(const ModelAnalysis& analysis);
// The verdict, then tables by layer for each checkpoint.
std::string model_text(const Json& figures);
extern const std::string_view kModelPage;  // for page_document(); written by page_scripts()

// Runs on one rank or, under mpirun or srun, on several. Rank 0 prints the report and writes the files.
int model_verb(const ModelRequest& request);

// `evidence`: what several verbs found about precisions of a training, weighed. Three kinds, the strongest first:
//
//   training  `compare`: pairs of trainings over seeds, with a test of equivalence. All products are lowered together,
//             and errors act on through all steps.
//   one step  `analyze sensitivity`: the loss of a few batches with a single product lowered, at a point of the
//             training, in the pass or after an update. Measures a loss, but not how errors add up. An update shows
//             no harm of backward products: "no harm" is said of the forward pass alone.
//   counts    `analyze model`, and sensitivity's bands: how many values a format loses. They measure no loss.
//
// The strongest kind with an answer decides. A weaker kind that disagrees is named, and does not count.

// A rise of the loss that matters, nats per token: a tenth of a per cent of perplexity, and less than another seed
// makes. Unless its budget is one of loss, `advise` takes the fastest of the plans within it of the best.
inline constexpr double kHarmNats = 1e-3;

struct EvidenceFile {
  std::string name;  // in errors
  Json figures;      // that a verb wrote with --json
};

// ConfigError for a file of another verb, for files of different models, trainings or baselines, and if two files of
// one verb have the same precision. Several files of `compare` share their baseline.
Json weigh_evidence(const std::vector<EvidenceFile>& files);
std::string evidence_text(const Json& figures);

// Reads the files; writes the figures unless `json` is empty.
int evidence_verb(const std::vector<std::string>& files, const std::string& json);

}  // namespace mantissa
