// The program `mantissa`: its verbs and their options.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>

#include "core/base/log.h"
#include "core/base/run_reported.h"
#include "tools/advise/advise_verb.h"
#include "tools/analyze/formats_verb.h"
#include "tools/analyze/model_verb.h"
#include "tools/analyze/probes_verb.h"
#include "tools/analyze/sensitivity/sensitivity_verb.h"
#include "tools/compare/compare_verb.h"
#include "tools/config/config.h"
#include "tools/config/precision_phases.h"
#include "tools/generate/generate_verb.h"
#include "tools/train/launch.h"
#include "tools/train/memory_table.h"
#include "tools/train/precision_table.h"
#include "tools/train/train_verb.h"

namespace mantissa {
namespace {

int config_verb(const std::string& path, const std::vector<std::string>& overrides) {
  return run_reported([&] {
    const Config config = load_config(path, overrides);
    require_known_names(config);
    predict_memory_tables(config, 1);  // what only the model can judge: patterns over its layers
    std::string text = to_yaml(config);
    for (int phase = 0; phase < phase_count(config); ++phase) {
      text += fmt::format("\n# What comes of precision: for this model{}\n", phase_title(config, phase));
      text += precision_table(in_phase(config, phase), "# ");
    }
    std::fwrite(text.data(), 1, text.size(), stdout);
  });
}

int run(int argc, char** argv) {
  CLI::App app("mantissa: distributed mixed-precision training of transformers");
  app.require_subcommand(1);
  std::string path;
  std::vector<std::string> overrides;
  const auto add_config_arguments = [&](CLI::App* verb) {
    verb->add_option("config", path, "YAML file; configs/reference.yaml documents every key")->required();
    verb->add_option("overrides", overrides, "settings that replace the file's: optimizer.lr=3e-4");
  };
  CLI::App* train = app.add_subcommand("train", "Trains a model; several ranks under mpirun or srun");
  add_config_arguments(train);
  CLI::App* config = app.add_subcommand("config", "Prints the resolved configuration; validates, trains nothing");
  add_config_arguments(config);
  CLI::App* generate = app.add_subcommand("generate", "Continues a prompt with a trained model");
  GenerateRequest request;
  generate->add_option("run", request.run, "run folder, or one checkpoint folder of it")->required();
  generate->add_option("--prompt", request.prompt, "what to continue")->required();
  generate->add_option("--tokens", request.sampling.tokens, "how many tokens to add")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  generate->add_option("--temperature", request.sampling.temperature, "0: always the likeliest token")
      ->capture_default_str();
  generate->add_option("--top-k", request.sampling.top_k, "draw from this many likeliest tokens; 0: from all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  generate->add_option("--seed", request.sampling.seed, "the same seed gives the same text")->capture_default_str();
  CLI::App* analyze = app.add_subcommand("analyze", "Measures what precision does; trains nothing");
  analyze->require_subcommand(1);
  CLI::App* formats = analyze->add_subcommand("formats", "Range and errors of number formats, speed of their products");
  FormatsRequest formats_request;
  formats->add_option("--device", formats_request.device, "a backend, or auto")->capture_default_str();
  formats->add_option("--samples", formats_request.samples, "values tried for each size")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 26))
      ->capture_default_str();
  formats->add_flag("!--no-products", formats_request.products, "without the speed of products");
  formats->add_option("--json", formats_request.json, "a file that the figures are written to as well");
  CLI::App* probes = analyze->add_subcommand("probes", "What a run's probes have found, as comma-separated values");
  ProbesRequest probes_request;
  probes->add_option("run", probes_request.run, "run folder, or its probe file")->required();
  probes->add_option("--role", probes_request.role, "rows of this role: activation, weight, gradient, wgrad, ...");
  probes->add_option("--tensor", probes_request.tensor, "rows of tensors whose name contains this");
  probes->add_option("--step", probes_request.step, "rows of this step; 0: all")->check(CLI::NonNegativeNumber);
  probes->add_option("--format", probes_request.format, "what this format would lose besides: fp16, bf16, e4m3, ...");
  probes->add_option("--exponent", probes_request.exponent, "at a scale of two to this power")
      ->check(CLI::Range(-300, 300))
      ->capture_default_str();
  CLI::App* model =
      analyze->add_subcommand("model", "What precision does to a model, layer by layer; under mpirun too");
  ModelRequest model_request;
  ModelOutputs model_outputs;
  model->add_option("target", model_request.target, "a configuration, or a run folder")->required();
  model->add_option("overrides", model_request.overrides, "settings that replace the target's: precision.recipe=mxfp8");
  model->add_option("--batches", model_request.batches, "steps from each point of the training")
      ->check(CLI::Range(int64_t{1}, int64_t{10000}))
      ->capture_default_str();
  model
      ->add_option("--percentile", model_request.loss_scale.percentile,
                   "per cent of the gradients that the recommended loss scale keeps from overflow")
      ->capture_default_str();
  model
      ->add_option("--headroom", model_request.loss_scale.headroom,
                   "factor that gradients may grow by before they overflow at that scale")
      ->capture_default_str();
  model->add_option("--html", model_outputs.html, "a file for the report as a page, which needs no network");
  model->add_option("--json", model_outputs.json, "a file that the figures are written to as well");
  CLI::App* sensitivity = analyze->add_subcommand(
      "sensitivity", "What lowering one product of one layer does to a model's training; under mpirun too");
  SensitivityRequest sensitivity_request;
  std::string sensitivity_json;
  sensitivity->add_option("target", sensitivity_request.target, "a configuration, or a run folder")->required();
  sensitivity->add_option("overrides", sensitivity_request.overrides,
                          "settings that replace the target's: train.global_batch=8");
  sensitivity
      ->add_option("--formats", sensitivity_request.formats,
                   "of bf16,fp16 for whole layers, current,block,mxfp8,nvfp4 and the like of current:e5m2 for products")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  sensitivity->add_option("--layers", sensitivity_request.layers, "a pattern of layers' paths: blocks.*.mlp")
      ->capture_default_str();
  sensitivity->add_option("--batches", sensitivity_request.batches, "that everything is repeated on")
      ->check(CLI::Range(int64_t{1}, int64_t{10000}))
      ->capture_default_str();
  sensitivity->add_option("--probes", sensitivity_request.probes, "of the Hessian, over all batches; 0: none")
      ->check(CLI::Range(int64_t{0}, int64_t{100000}))
      ->capture_default_str();
  sensitivity->add_option("--rows", sensitivity_request.rows, "of a micro-batch that products are looked at on")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  sensitivity
      ->add_option("--risk-low", sensitivity_request.low_risk,
                   "share of elements at risk below which low is "
                   "said to do")
      ->capture_default_str();
  sensitivity->add_option("--risk-high", sensitivity_request.high_risk, "and above which fp32 is needed")
      ->capture_default_str();
  sensitivity->add_option("--json", sensitivity_json, "a file that the figures are written to as well");
  CLI::App* advise =
      app.add_subcommand("advise", "Predicts the speed of a model's training by precision, and says which to take");
  AdviseRequest advise_request;
  advise->add_option("config", advise_request.config, "YAML file")->required();
  advise->add_option("overrides", advise_request.overrides, "settings that replace the file's: precision.recipe=mxfp8");
  advise->add_option("--hardware", advise_request.hardware,
                     "a device by its data sheet: t4, v100, a100, h100, h200, b200, tpu-v3, gaudi2; without it the one "
                     "that is here, measured");
  advise->add_option("--ranks", advise_request.ranks, "devices of one node, each a rank")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  advise->add_option("--formats", advise_request.formats, "of fp32,tf32,bf16,fp16,delayed,current,block,mxfp8,nvfp4")
      ->delimiter(',')
      ->allow_extra_args(false);
  advise
      ->add_option("--rounds", advise_request.rounds,
                   "of timing kernels and steps by turns, on the device that is here")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  advise->add_option("--budget", advise_request.budget,
                     "plans the precision of each layer under it: time=12ms, time=90%, memory=1.5GiB, loss=0.01");
  advise->add_option("--solver", advise_request.solver, "whose plan is taken, of those that search one")
      ->capture_default_str();
  advise
      ->add_option("--recipes", advise_request.recipes,
                   "of 8 and 4 bits that a plan may use: current,block,mxfp8,nvfp4, or none")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  advise->add_option("--plan", advise_request.plan, "the file that a plan is written to")->capture_default_str();
  advise->add_option("--warm-up", advise_request.warm_up, "steps in fp32 before a plan's layers are looked at")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  advise->add_option("--batches", advise_request.batches, "that each layer is looked at on")
      ->check(CLI::Range(int64_t{1}, int64_t{10000}))
      ->capture_default_str();
  advise->add_option("--seeds", advise_request.seeds, "of runs that validate a plan, at most; 0: none")
      ->check(CLI::Range(int64_t{0}, int64_t{1000}))
      ->capture_default_str();
  advise->add_option("--steps", advise_request.steps, "of each of these runs, at most")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  advise->add_option("--json", advise_request.json, "a file that the figures are written to as well");
  CLI::App* compare =
      app.add_subcommand("compare", "Trains a model in several precisions and says which differ; under mpirun too");
  CompareRequest compare_request;
  compare->add_option("config", compare_request.config, "YAML file")->required();
  compare->add_option("overrides", compare_request.overrides, "settings that replace the file's: optimizer.lr=3e-4");
  compare
      ->add_option("--precisions", compare_request.precisions,
                   "of fp32,tf32,bf16,fp16,delayed,current,block,mxfp8,nvfp4, fp8 (delayed), fp4 (nvfp4), configured, "
                   "and NAME=FILE for the precision section of a file")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  compare->add_option("--seeds", compare_request.seeds, "runs of each precision, with train.seed and those behind it")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}))
      ->capture_default_str();
  compare->add_option("--steps", compare_request.steps, "of each run, in place of train.steps")
      ->check(CLI::PositiveNumber);
  compare->add_option("--baseline", compare_request.baseline,
                      "the precision that others are compared with; fp32 where it is there, else the first");
  compare->add_option("--margin", compare_request.margin,
                      "difference of losses, in nats, that is none; without it what seeds change");
  compare->add_option("--html", compare_request.html, "a file for the report as a page, which needs no network");
  compare->add_option("--json", compare_request.json, "a file that the figures are written to as well");
  compare->add_flag("!--no-products", compare_request.products, "without the speed of products in these files");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = launcher_rank() == 0 ? app.exit(error) : error.get_exit_code();
    return code == 0 ? 0 : static_cast<int>(ExitCode::kConfig);
  }
  if (*train) return train_verb(path, overrides);
  if (*config) return config_verb(path, overrides);
  if (*formats) return formats_verb(formats_request);
  if (*probes) return probes_verb(probes_request);
  if (*model) return model_verb(model_request, model_outputs);
  if (*sensitivity) return sensitivity_verb(sensitivity_request, sensitivity_json);
  if (*advise) return advise_verb(advise_request);
  if (*compare) return compare_verb(compare_request);
  return generate_verb(request);
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of its write, which is handled
  mantissa::start_logging(mantissa::launcher_rank(), 1);
  return mantissa::run(argc, argv);
}
