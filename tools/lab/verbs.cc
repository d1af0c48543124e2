#include "tools/lab/verbs.h"

#include <fmt/ranges.h>

#include <memory>

#include "tools/config/precision_names.h"
#include "tools/lab/advise_verb.h"
#include "tools/lab/analyze/evidence.h"
#include "tools/lab/analyze/formats_verb.h"
#include "tools/lab/analyze/model_verb.h"
#include "tools/lab/analyze/probes_verb.h"
#include "tools/lab/analyze/sensitivity/sensitivity_verb.h"
#include "tools/lab/compare/compare_verb.h"

namespace mantissa {
namespace {

constexpr const char* kJson = "also write the figures to this file";
constexpr const char* kHtml = "also write the report as a page that needs no network";

// "50%" as "50e-2".
std::string share_of_text(const std::string& text) {
  return text.ends_with('%') ? text.substr(0, text.size() - 1) + "e-2" : text;
}

void add_formats(CLI::App* analyze, std::vector<Verb>& verbs) {
  CLI::App* formats = analyze->add_subcommand("formats", "Range and error of each number format, GEMM speed by format");
  const auto request = std::make_shared<FormatsRequest>();
  formats->add_option("--device", request->device, "backend name, or auto")->capture_default_str();
  formats->add_option("--samples", request->samples, "values to try for each magnitude")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 26))
      ->capture_default_str();
  formats->add_flag("!--no-products", request->products, "do not measure GEMM speed");
  formats->add_flag("--full", request->full, "also print errors by decade, lost gradients, and products by size");
  formats->add_option("--html", request->html, kHtml);
  formats->add_option("--json", request->json, kJson);
  verbs.push_back({formats, "analyze formats --full", [request] { return formats_verb(*request); }});
}

void add_probes(CLI::App* analyze, std::vector<Verb>& verbs) {
  CLI::App* probes = analyze->add_subcommand("probes", "Print what a run's probes recorded as comma-separated values");
  const auto request = std::make_shared<ProbesRequest>();
  probes->add_option("run", request->run, "run folder or probe file")->required();
  probes->add_option("--role", request->role, "only rows of this role: activation, weight, gradient, wgrad, ...");
  probes->add_option("--tensor", request->tensor, "only rows of tensors whose name contains this text");
  probes->add_option("--step", request->step, "only rows of this step; 0: all steps")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  probes->add_option("--format", request->format, "add what this format would lose: fp16, bf16, e4m3, ...");
  probes->add_option("--exponent", request->exponent, "scale for --format: two to this power")
      ->check(CLI::Range(-300, 300))
      ->capture_default_str();
  CLI::Option* const sql =
      probes->add_option("--sql", request->sql, "a query on the table probes, to print instead: \"SELECT ...\"")
          ->check([](const std::string& query) { return std::string(query.empty() ? "expected a query" : ""); });
  for (const char* filter : {"--role", "--tensor", "--step", "--format", "--exponent"}) {
    sql->excludes(probes->get_option(filter));
  }
  verbs.push_back({probes, "analyze probes runs/quickstart --role gradient --format fp16 > gradients.csv",
                   [request] { return probes_verb(*request); }});
}

void add_model(CLI::App* analyze, std::vector<Verb>& verbs) {
  CLI::App* model =
      analyze->add_subcommand("model", "Show what precision does to a model, layer by layer; also runs under mpirun");
  const auto request = std::make_shared<ModelRequest>();
  const auto outputs = std::make_shared<ModelOutputs>();
  model->add_option("target", request->target, "configuration file or run folder")->required();
  model->add_option("overrides", request->overrides, "settings that replace the target's: precision.recipe=mxfp8");
  model->add_option("--batches", request->batches, "steps to train from each point of the training")
      ->check(CLI::Range(int64_t{1}, int64_t{10000}))
      ->capture_default_str();
  model
      ->add_option(
          "--percentile", request->loss_scale.percentile,
          "per cent of the gradients that the recommended loss scale keeps from overflow: above 0, at most 100")
      ->capture_default_str();
  model
      ->add_option("--headroom", request->loss_scale.headroom,
                   "factor that gradients may grow by before they overflow at that scale: from 2^-64 to 2^64")
      ->capture_default_str();
  model->add_option("--html", outputs->html, kHtml);
  model->add_option("--json", outputs->json, kJson);
  verbs.push_back({model, "analyze model runs/quickstart --html report.html",
                   [request, outputs] { return model_verb(*request, *outputs); }});
}

void add_sensitivity(CLI::App* analyze, std::vector<Verb>& verbs) {
  CLI::App* sensitivity = analyze->add_subcommand(
      "sensitivity", "Show what lowering one product of one layer does to the training; also runs under mpirun");
  const auto request = std::make_shared<SensitivityRequest>();
  const auto outputs = std::make_shared<ModelOutputs>();
  sensitivity->add_option("target", request->target, "configuration file or run folder")->required();
  sensitivity->add_option("overrides", request->overrides, "settings that replace the target's: train.global_batch=8");
  sensitivity
      ->add_option("--formats", request->formats,
                   "formats to try: bf16,fp16 for whole layers; current,block,mxfp8,nvfp4 or, for example, "
                   "current:e5m2 for products")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  sensitivity->add_option("--layers", request->layers, "pattern for the paths of the layers to try: blocks.*.mlp")
      ->capture_default_str();
  sensitivity->add_option("--batches", request->batches, "batches to repeat every trial on")
      ->check(CLI::Range(int64_t{1}, int64_t{10000}))
      ->capture_default_str();
  sensitivity->add_option("--probes", request->probes, "probes of the Hessian, over all batches; 0: none")
      ->check(CLI::Range(int64_t{0}, int64_t{100000}))
      ->capture_default_str();
  CLI::Option* const interval =
      sensitivity
          ->add_option("--hessian-interval", request->hessian_interval,
                       "add probes until the 95 % interval of each Hessian score is no wider than ± this part of the "
                       "score: 50%")
          ->transform(share_of_text);
  sensitivity->add_option("--max-probes", request->max_probes, "probes to add at most, those of --probes included")
      ->check(CLI::Range(int64_t{2}, int64_t{100000}))
      ->capture_default_str()
      ->needs(interval);
  sensitivity->add_option("--rows", request->rows, "rows of a micro-batch to sample from each product")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  CLI::Option* const low =
      sensitivity
          ->add_option("--risk-low", request->low_risk,
                       "share of elements at risk below which a product may have low precision: 5%; default: "
                       "as measured for the format, where shares tell harm")
          ->transform(share_of_text);
  CLI::Option* const high =
      sensitivity
          ->add_option("--risk-high", request->high_risk, "share of elements at risk above which fp32 is needed: 20%")
          ->transform(share_of_text);
  low->needs(high);
  high->needs(low);
  CLI::Option* const weights =
      sensitivity
          ->add_option("--score", request->score,
                       "also rank layers by w1 magnitude + w2 variance over batches + w3 change by a step of their "
                       "gradients: weights w1,w2,w3")
          ->delimiter(',')
          ->allow_extra_args(false);
  sensitivity->add_option("--top-k", request->top_k, "layers of that ranking to print; 0: all")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20))
      ->capture_default_str()
      ->needs(weights);
  sensitivity->add_option("--html", outputs->html, kHtml);
  sensitivity->add_option("--json", outputs->json, kJson);
  verbs.push_back({sensitivity, "analyze sensitivity configs/recipes.yaml --layers 'blocks.*.mlp'",
                   [request, outputs] { return sensitivity_verb(*request, *outputs); }});
}

void add_evidence(CLI::App* analyze, std::vector<Verb>& verbs) {
  CLI::App* evidence = analyze->add_subcommand(
      "evidence", "Weigh what compare, analyze sensitivity and analyze model found about precisions of one training");
  const auto files = std::make_shared<std::vector<std::string>>();
  const auto json = std::make_shared<std::string>();
  evidence->add_option("files", *files, "files that these verbs wrote with --json")->required();
  evidence->add_option("--json", *json, kJson);
  verbs.push_back({evidence, "analyze evidence compare.json sensitivity.json model.json",
                   [files, json] { return evidence_verb(*files, *json); }});
}

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

void add_lab_verbs(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* analyze = app.add_subcommand("analyze", "Measure what precision does, without a training run");
  analyze->require_subcommand(1);
  add_formats(analyze, verbs);
  add_probes(analyze, verbs);
  add_model(analyze, verbs);
  add_sensitivity(analyze, verbs);
  add_evidence(analyze, verbs);
  add_advise(app, verbs);
  add_compare(app, verbs);
}

}  // namespace mantissa
