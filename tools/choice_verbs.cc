#include <fmt/ranges.h>

#include <memory>

#include "tools/config/precision_names.h"
#include "tools/lab/advise_verb.h"
#include "tools/lab/compare/compare_verb.h"
#include "tools/verbs.h"

namespace mantissa {
namespace {

void add_advise(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* advise =
      app.add_subcommand("advise", "Predict training speed by precision, or plan precision under a budget");
  verbs.push_back({advise, "advise configs/gpt_small_bf16.yaml --hardware h100", add_advise_options(*advise)});
}

void add_compare(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* compare = app.add_subcommand(
      "compare", "Train a model in several precisions and show which of them differ; also runs under mpirun");
  const auto request = std::make_shared<CompareRequest>();
  compare->add_option("config", request->config, "YAML file")->required();
  compare->add_option("overrides", request->overrides, "settings that replace the file's: optimizer.lr=3e-4");
  compare
      ->add_option("--precisions", request->precisions,
                   fmt::format("precisions to train: {}, fp8 (delayed), fp4 (nvfp4), one of these with a pattern "
                               "(mxfp8:attention_high), configured, or NAME=FILE for the precision of a file, such as "
                               "a plan",
                               fmt::join(uniform_precisions(), ",")))
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  compare->add_option("--seeds", request->seeds, "runs of each precision, with train.seed and the seeds after it")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}))
      ->capture_default_str();
  compare->add_option("--steps", request->steps, "steps of each run; default: train.steps")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  compare->add_option("--baseline", request->baseline,
                      "precision that the others are compared with; default: fp32 if it is trained, else the first");
  compare
      ->add_option(
          "--margin", request->margin,
          "difference of losses that counts as equal: nats, such as 0.01, or per cent of what the baseline learns")
      ->capture_default_str();
  compare->add_option("--utility", request->utility,
                      "name the best precision by weights of what it costs: loss=1,time=0.5,memory=0.2,energy=0.1");
  compare
      ->add_option("--hardware", request->hardware,
                   "the device whose energy counts, as `mantissa advise` predicts it: t4, v100, a100, ...")
      ->needs("--utility");
  compare->add_option("--html", request->html, "also write the report as a page that needs no network");
  compare->add_option("--json", request->json, "also write the figures to this file");
  compare->add_flag("!--no-products", request->products, "do not measure GEMM speed for these files");
  verbs.push_back({compare, "compare configs/quickstart.yaml --precisions fp32,bf16,fp8 --steps 100",
                   [request] { return compare_verb(*request); }});
}

}  // namespace

void add_choice_verbs(CLI::App& app, std::vector<Verb>& verbs) {
  add_advise(app, verbs);
  add_compare(app, verbs);
}

}  // namespace mantissa
