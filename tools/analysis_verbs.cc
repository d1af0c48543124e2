#include <memory>

#include "tools/lab/analyze/formats_verb.h"
#include "tools/lab/analyze/model_verb.h"
#include "tools/lab/analyze/probes_verb.h"
#include "tools/lab/analyze/sensitivity/sensitivity_verb.h"
#include "tools/verbs.h"

namespace mantissa {
namespace {

void add_formats(CLI::App* analyze, std::vector<Verb>& verbs) {
  CLI::App* formats = analyze->add_subcommand("formats", "Range and errors of number formats, speed of their products");
  const auto request = std::make_shared<FormatsRequest>();
  formats->add_option("--device", request->device, "a backend, or auto")->capture_default_str();
  formats->add_option("--samples", request->samples, "values tried for each size")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 26))
      ->capture_default_str();
  formats->add_flag("!--no-products", request->products, "without the speed of products");
  formats->add_option("--json", request->json, "a file that the figures are written to as well");
  verbs.push_back({formats, [request] { return formats_verb(*request); }});
}

void add_probes(CLI::App* analyze, std::vector<Verb>& verbs) {
  CLI::App* probes = analyze->add_subcommand("probes", "What a run's probes have found, as comma-separated values");
  const auto request = std::make_shared<ProbesRequest>();
  probes->add_option("run", request->run, "run folder, or its probe file")->required();
  probes->add_option("--role", request->role, "rows of this role: activation, weight, gradient, wgrad, ...");
  probes->add_option("--tensor", request->tensor, "rows of tensors whose name contains this");
  probes->add_option("--step", request->step, "rows of this step; 0: all")->check(CLI::NonNegativeNumber);
  probes->add_option("--format", request->format, "what this format would lose besides: fp16, bf16, e4m3, ...");
  probes->add_option("--exponent", request->exponent, "at a scale of two to this power")
      ->check(CLI::Range(-300, 300))
      ->capture_default_str();
  probes->add_option("--sql", request->sql, "a query on the table probes, to print instead: \"SELECT ...\"");
  verbs.push_back({probes, [request] { return probes_verb(*request); }});
}

void add_model(CLI::App* analyze, std::vector<Verb>& verbs) {
  CLI::App* model =
      analyze->add_subcommand("model", "What precision does to a model, layer by layer; under mpirun too");
  const auto request = std::make_shared<ModelRequest>();
  const auto outputs = std::make_shared<ModelOutputs>();
  model->add_option("target", request->target, "a configuration, or a run folder")->required();
  model->add_option("overrides", request->overrides, "settings that replace the target's: precision.recipe=mxfp8");
  model->add_option("--batches", request->batches, "steps from each point of the training")
      ->check(CLI::Range(int64_t{1}, int64_t{10000}))
      ->capture_default_str();
  model
      ->add_option("--percentile", request->loss_scale.percentile,
                   "per cent of the gradients that the recommended loss scale keeps from overflow")
      ->capture_default_str();
  model
      ->add_option("--headroom", request->loss_scale.headroom,
                   "factor that gradients may grow by before they overflow at that scale")
      ->capture_default_str();
  model->add_option("--html", outputs->html, "a file for the report as a page, which needs no network");
  model->add_option("--json", outputs->json, "a file that the figures are written to as well");
  verbs.push_back({model, [request, outputs] { return model_verb(*request, *outputs); }});
}

void add_sensitivity(CLI::App* analyze, std::vector<Verb>& verbs) {
  CLI::App* sensitivity = analyze->add_subcommand(
      "sensitivity", "What lowering one product of one layer does to a model's training; under mpirun too");
  const auto request = std::make_shared<SensitivityRequest>();
  const auto json = std::make_shared<std::string>();
  sensitivity->add_option("target", request->target, "a configuration, or a run folder")->required();
  sensitivity->add_option("overrides", request->overrides, "settings that replace the target's: train.global_batch=8");
  sensitivity
      ->add_option("--formats", request->formats,
                   "of bf16,fp16 for whole layers, current,block,mxfp8,nvfp4 and the like of current:e5m2 for products")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  sensitivity->add_option("--layers", request->layers, "a pattern of layers' paths: blocks.*.mlp")
      ->capture_default_str();
  sensitivity->add_option("--batches", request->batches, "that everything is repeated on")
      ->check(CLI::Range(int64_t{1}, int64_t{10000}))
      ->capture_default_str();
  sensitivity->add_option("--probes", request->probes, "of the Hessian, over all batches; 0: none")
      ->check(CLI::Range(int64_t{0}, int64_t{100000}))
      ->capture_default_str();
  sensitivity->add_option("--rows", request->rows, "of a micro-batch that products are looked at on")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  sensitivity
      ->add_option("--risk-low", request->low_risk,
                   "share of elements at risk below which low is "
                   "said to do")
      ->capture_default_str();
  sensitivity->add_option("--risk-high", request->high_risk, "and above which fp32 is needed")->capture_default_str();
  sensitivity->add_option("--json", *json, "a file that the figures are written to as well");
  verbs.push_back({sensitivity, [request, json] { return sensitivity_verb(*request, *json); }});
}

}  // namespace

void add_analysis_verbs(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* analyze = app.add_subcommand("analyze", "Measures what precision does; trains nothing");
  analyze->require_subcommand(1);
  add_formats(analyze, verbs);
  add_probes(analyze, verbs);
  add_model(analyze, verbs);
  add_sensitivity(analyze, verbs);
}

}  // namespace mantissa
