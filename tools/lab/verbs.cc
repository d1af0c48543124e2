#include "tools/lab/verbs.h"

#include <fmt/ranges.h>

#include <memory>

#include "tools/config/precision_phases.h"
#include "tools/lab/analyze/analyze_verbs.h"
#include "tools/lab/analyze/sensitivity/sensitivity_analysis.h"
#include "tools/lab/compare/precision_comparison.h"
#include "tools/lab/prove/proof.h"

namespace mantissa {
namespace {

constexpr int64_t kStepLimit = int64_t{1} << 40;

// "50%" as "50e-2".
std::string share_of_text(const std::string& text) {
  return text.ends_with('%') ? text.substr(0, text.size() - 1) + "e-2" : text;
}

void add_formats(CLI::App* analyze, std::vector<Verb>& verbs) {
  CLI::App* formats = analyze->add_subcommand("formats", "Range and error of each number format, GEMM speed by format");
  const auto request = std::make_shared<FormatsRequest>();
  VerbOptions options(*formats);
  options.add("--device", request->device, "backend name, or auto");
  options.count("--samples", request->samples, 1, int64_t{1} << 26, "values to try for each magnitude");
  formats->add_flag("!--no-products", request->products, "do not measure GEMM speed");
  formats->add_flag("--full", request->full, "also print errors by decade, lost gradients, and products by size");
  options.html_and_json(request->html, request->json);
  verbs.push_back({formats, "analyze formats --full", [request] { return formats_verb(*request); }});
}

void add_probes(CLI::App* analyze, std::vector<Verb>& verbs) {
  CLI::App* probes = analyze->add_subcommand("probes", "Print what a run's probes recorded as comma-separated values");
  const auto request = std::make_shared<ProbesRequest>();
  VerbOptions options(*probes);
  probes->add_option("run", request->run, "run folder or probe file")->required();
  options.add("--role", request->role, "only rows of this role: activation, weight, gradient, wgrad, ...");
  options.add("--tensor", request->tensor, "only rows of tensors whose name contains this text");
  probes->add_option("--step", request->step, "only rows of this step; 0: all steps")
      ->check(CLI::Range(int64_t{0}, kStepLimit));
  options.add("--format", request->format, "add what this format would lose: fp16, bf16, e4m3, ...");
  options.count("--exponent", request->exponent, -300, 300, "scale for --format: two to this power");
  CLI::Option* const sql =
      options.add("--sql", request->sql, "a query on the table probes, to print instead: \"SELECT ...\"")
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
  VerbOptions options(*model);
  model->add_option("target", request->target, "configuration file or run folder")->required();
  model->add_option("overrides", request->overrides, "settings that replace the target's: precision.recipe=mxfp8");
  options.count("--batches", request->batches, 1, 10000, "steps to train from each point of the training");
  options.add("--percentile", request->loss_scale.percentile,
              "per cent of the gradients that the recommended loss scale keeps from overflow: above 0, at most 100");
  options.add("--headroom", request->loss_scale.headroom,
              "factor that gradients may grow by before they overflow at that scale: from 2^-64 to 2^64");
  options.html_and_json(request->html, request->json);
  verbs.push_back(
      {model, "analyze model runs/quickstart --html report.html", [request] { return model_verb(*request); }});
}

void add_sensitivity(CLI::App* analyze, std::vector<Verb>& verbs) {
  CLI::App* sensitivity = analyze->add_subcommand(
      "sensitivity", "Show what lowering one product of one layer does to the training; also runs under mpirun");
  const auto request = std::make_shared<SensitivityRequest>();
  VerbOptions options(*sensitivity);
  const auto share = [&](const char* name, std::optional<double>& value, const char* text) {
    return sensitivity->add_option(name, value, text)->transform(share_of_text);
  };
  sensitivity->add_option("target", request->target, "configuration file or run folder")->required();
  sensitivity->add_option("overrides", request->overrides, "settings that replace the target's: train.global_batch=8");
  options.list("--formats", request->formats,
               "formats to try: bf16,fp16 for whole layers; current,block,mxfp8,nvfp4 or, for example, current:e5m2 "
               "for products");
  options.add("--layers", request->layers, "pattern for the paths of the layers to try: blocks.*.mlp");
  options.count("--batches", request->batches, 1, 10000, "batches to repeat every trial on");
  options.count("--probes", request->probes, 0, 100000, "probes of the Hessian, over all batches; 0: none");
  CLI::Option* const interval =
      share("--hessian-interval", request->hessian_interval,
            "add probes until the 95 % interval of each Hessian score is no wider than ± this part of the score: 50%");
  options.count("--max-probes", request->max_probes, 2, 100000, "probes to add at most, those of --probes included")
      ->needs(interval);
  options.count("--rows", request->rows, 1, 1 << 20, "rows of a micro-batch to sample from each product");
  CLI::Option* const low = share("--risk-low", request->low_risk,
                                 "share of elements at risk below which a product may have low precision: 5%; default: "
                                 "as measured for the format, where shares tell harm");
  CLI::Option* const high =
      share("--risk-high", request->high_risk, "share of elements at risk above which fp32 is needed: 20%");
  low->needs(high);
  high->needs(low);
  CLI::Option* const weights = options.list("--score", request->score,
                                            "also rank layers by w1 magnitude + w2 variance over batches + w3 change "
                                            "by a step of their gradients: weights w1,w2,w3");
  options.count("--top-k", request->top_k, 0, 1 << 20, "layers of that ranking to print; 0: all")->needs(weights);
  options.html_and_json(request->html, request->json);
  verbs.push_back({sensitivity, "analyze sensitivity configs/recipes.yaml --layers 'blocks.*.mlp'",
                   [request] { return sensitivity_verb(*request); }});
}

void add_evidence(CLI::App* analyze, std::vector<Verb>& verbs) {
  CLI::App* evidence = analyze->add_subcommand(
      "evidence", "Weigh what compare, analyze sensitivity and analyze model found about precisions of one training");
  const auto files = std::make_shared<std::vector<std::string>>();
  const auto json = std::make_shared<std::string>();
  evidence->add_option("files", *files, "files that these verbs wrote with --json")->required();
  VerbOptions(*evidence).json(*json);
  verbs.push_back({evidence, "analyze evidence compare.json sensitivity.json model.json",
                   [files, json] { return evidence_verb(*files, *json); }});
}

void add_compare(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* compare = app.add_subcommand(
      "compare", "Train a model in several precisions and show which of them differ; also runs under mpirun");
  const auto request = std::make_shared<CompareRequest>();
  VerbOptions options(*compare);
  compare->add_option("config", request->config, "YAML file")->required();
  compare->add_option("overrides", request->overrides, "settings that replace the file's: optimizer.lr=3e-4");
  options.list(
      "--precisions", request->precisions,
      fmt::format("precisions to train: {}, fp8 (delayed), fp4 (nvfp4), one of these with a pattern "
                  "(mxfp8:attention_high), configured, or NAME=FILE for the precision of a file, such as a plan",
                  fmt::join(uniform_precisions(), ",")));
  options.count("--seeds", request->seeds, 1, 1000, "runs of each precision, with train.seed and the seeds after it");
  compare->add_option("--steps", request->steps, "steps of each run; default: train.steps")
      ->check(CLI::Range(int64_t{1}, kStepLimit));
  options.add("--baseline", request->baseline,
              "precision that the others are compared with; default: fp32 if it is trained, else the first");
  options.add("--margin", request->margin,
              "difference of losses that counts as equal: nats, such as 0.01, or per cent of what the baseline learns");
  options.add("--utility", request->utility,
              "name the best precision by weights of what it costs: loss=1,time=0.5,memory=0.2,energy=0.1");
  options
      .add("--hardware", request->hardware,
           "the device whose energy counts, as `mantissa advise` predicts it: t4, v100, a100, ...")
      ->needs("--utility");
  options.html_and_json(request->html, request->json);
  compare->add_flag("!--no-products", request->products, "do not measure GEMM speed for these files");
  verbs.push_back({compare, "compare configs/quickstart.yaml --precisions fp32,bf16,fp8 --steps 100",
                   [request] { return compare_verb(*request); }});
}

void add_prove(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* prove = app.add_subcommand(
      "prove", "Train a few steps on several ranks and threads, and show that their bits are the same");
  const auto request = std::make_shared<ProveRequest>();
  VerbOptions options(*prove);
  prove->add_option("config", request->config, "YAML file")->required();
  prove->add_option("overrides", request->overrides, "settings that replace the file's: model.layers=4");
  options.list("--ranks", request->ranks, "numbers of ranks, on this machine; several need mpirun")
      ->check(CLI::Range(1, 1 << 16));
  options.list("--threads", request->threads, "numbers of threads of a rank")->check(CLI::Range(1, 1 << 16));
  options.list("--exchange", request->exchange, "values of comm.exchange: direct, hierarchical, halving")
      ->check(CLI::IsMember({"auto", "direct", "hierarchical", "halving"}));
  options.count("--steps", request->steps, 1, kStepLimit, "steps of each run, at most train.steps");
  options.json(request->json);
  prove->footer(
      fmt::format("Exit codes: 0 all runs have the same bits, {} they differ, otherwise that of a run that "
                  "failed. `mantissa --help` has\nthe others.",
                  kDifferentBits));
  verbs.push_back({prove, "prove configs/quickstart.yaml train.micro_batch=2 --ranks 1,2,4 --threads 1,2 --steps 10",
                   [request] { return prove_verb(*request); }});
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
  CLI::App* advise =
      app.add_subcommand("advise", "Predict training speed by precision, or plan precision under a budget");
  verbs.push_back({advise, "advise configs/gpt_small_bf16.yaml --hardware h100", add_advise_options(*advise)});
  add_plan(app, verbs);
  add_compare(app, verbs);
  add_prove(app, verbs);
  add_bench(app, verbs);
}

}  // namespace mantissa
