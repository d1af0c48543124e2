#include <memory>

#include "tools/lab/advise_verb.h"
#include "tools/lab/compare/compare_verb.h"
#include "tools/verbs.h"

namespace mantissa {
namespace {

void add_plan_options(CLI::App* advise, AdviseRequest& request) {
  advise->add_option("--budget", request.budget,
                     "plans the precision of each layer, and of what all share, under it: time=12ms, time=90%, "
                     "memory=1.5GiB, loss=0.01");
  advise
      ->add_option("--solver", request.solver,
                   "with whose plan the search of whole plans begins: knapsack, greedy, top_k, evolution, bayesian, "
                   "enumeration, or differentiable, which trains the choice with the model")
      ->capture_default_str();
  advise
      ->add_option("--recipes", request.recipes,
                   "of 8 and 4 bits that a plan may use: current,block,mxfp8,nvfp4, or none")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  advise
      ->add_option("--state", request.state,
                   "what a plan decides about beside layers: moments,masters,wire (of several ranks), or none")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  advise->add_option("--plan", request.plan, "the file that a plan is written to")->capture_default_str();
  advise->add_option("--warm-up", request.warm_up, "steps in fp32 before a plan's layers are looked at")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  advise->add_option("--batches", request.batches, "that each layer is looked at on; of one there is no error")
      ->check(CLI::Range(int64_t{2}, int64_t{10000}))
      ->capture_default_str();
  advise->add_option("--seeds", request.seeds, "of runs that validate a plan, at most; 0: none")
      ->check(CLI::Range(int64_t{0}, int64_t{1000}))
      ->capture_default_str();
  advise
      ->add_option(
          "--time-pairs", request.time_pairs,
          "of step times, the plan's and those of uniform precisions, that a plan is validated by, at most; 0: "
          "losses alone")
      ->check(CLI::Range(int64_t{0}, int64_t{1000}))
      ->capture_default_str();
  advise->add_option("--steps", request.steps, "of each of these runs, at most")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
}

void add_advise(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* advise =
      app.add_subcommand("advise", "Predicts the speed of a model's training by precision, and says which to take");
  const auto request = std::make_shared<AdviseRequest>();
  advise->add_option("config", request->config, "YAML file")->required();
  advise->add_option("overrides", request->overrides, "settings that replace the file's: precision.recipe=mxfp8");
  advise->add_option("--hardware", request->hardware,
                     "a device by its data sheet: t4, v100, a100, h100, h200, b200, tpu-v3, gaudi2; without it the one "
                     "that is here, measured");
  advise->add_option("--ranks", request->ranks, "devices of one node, each a rank")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  advise->add_option("--formats", request->formats, "of fp32,tf32,bf16,fp16,delayed,current,block,mxfp8,nvfp4")
      ->delimiter(',')
      ->allow_extra_args(false);
  advise->add_option("--rounds", request->rounds, "of timing kernels and steps by turns, on the device that is here")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  add_plan_options(advise, *request);
  advise->add_option("--json", request->json, "a file that the figures are written to as well");
  verbs.push_back({advise, [request] { return advise_verb(*request); }});
}

void add_compare(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* compare = app.add_subcommand(
      "compare", "Train a model in several precisions and show which of them differ; also runs under mpirun");
  const auto request = std::make_shared<CompareRequest>();
  compare->add_option("config", request->config, "YAML file")->required();
  compare->add_option("overrides", request->overrides, "settings that replace the file's: optimizer.lr=3e-4");
  compare
      ->add_option("--precisions", request->precisions,
                   "precisions to train: fp32,tf32,bf16,fp16,delayed,current,block,mxfp8,nvfp4, fp8 (delayed), fp4 "
                   "(nvfp4), configured, or NAME=FILE for the precision section of a file")
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
  compare->add_option(
      "--margin", request->margin,
      "difference of losses, in nats, that counts as equal; default: their standard deviation over seeds");
  compare->add_option("--html", request->html, "also write the report as a page that needs no network");
  compare->add_option("--json", request->json, "also write the figures to this file");
  compare->add_flag("!--no-products", request->products, "do not measure GEMM speed for these files");
  verbs.push_back({compare, [request] { return compare_verb(*request); }});
}

}  // namespace

void add_choice_verbs(CLI::App& app, std::vector<Verb>& verbs) {
  add_advise(app, verbs);
  add_compare(app, verbs);
}

}  // namespace mantissa
