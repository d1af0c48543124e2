#include "tools/model/verbs.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/check.h"
#include "core/base/progress_bar.h"
#include "core/base/wrapped_text.h"
#include "tools/config/data_paths.h"
#include "tools/model/evaluate/scorer.h"
#include "tools/run/job/job.h"
#include "tools/run/report/report.h"

namespace mantissa {
namespace {

struct ScoredModel {
  std::string path;  // as for train.init_from
  std::vector<std::string> overrides;
  int64_t context = 0, sequences = 4;
  EncodeOptions encoding{.add_special_tokens = true};
};

struct EvaluateRequest {
  ScoredModel model;
  std::vector<std::string> texts, tasks;
  int64_t stride = 0;
  std::string json, text;  // text: of `score`
};

constexpr int64_t kMostTokens = int64_t{1} << 24;  // of a window
constexpr int64_t kLongWindow = 2048;              // longer ones take more memory, and change a perplexity little

int64_t window_of(int64_t wanted, const ModelConfig& model) {
  if (wanted == 0) return std::min(model.context, kLongWindow);
  require<ConfigError>(wanted <= model.context || model.position != Position::kLearned,
                       "--context {}: the model has positions for {} tokens", wanted, model.context);
  return wanted;
}

// Each rank loads the whole model. Collective.
LoadedModel load_scored(const ScoredModel& wanted, Communicator& communicator) {
  LoadedModel model = load_model(
      wanted.path, wanted.overrides,
      [&](ModelRuntime& dry, const LoadedModel& found) {
        require_causal(*dry.model, found.config.model);
        Scorer::run_dry(dry, wanted.sequences, window_of(wanted.context, found.config.model));
      },
      communicator.local_rank());
  model.warn_beyond_positions("--context", wanted.context);
  if (communicator.size() > 1) set_up_threads(model.config, communicator);
  return model;
}

// One rank prints.
void print(const Communicator& communicator, const std::string& text) {
  if (communicator.rank() == 0) ProgressBar::print(text);
}

void evaluate(const EvaluateRequest& request, Communicator& communicator) {
  require<ConfigError>(!request.texts.empty() || !request.tasks.empty(),
                       "nothing to evaluate on: give --text FILES or --tasks FILES");
  OutputFile json("--json", communicator.rank() == 0 ? request.json : "");
  const std::vector<std::string> files = text_files(request.texts), tasks = text_files(request.tasks);
  const LoadedModel model = load_scored(request.model, communicator);
  const ModelConfig& config = model.config.model;
  const int64_t length = window_of(request.model.context, config);
  require<ConfigError>(request.stride <= length, "--stride {}: expected at most the window, {} tokens", request.stride,
                       length);
  Scorer scorer(*model.runtime, request.model.sequences, length, &communicator);
  nlohmann::json results = nlohmann::json::array();
  WindowOptions windows{
      .length = length, .stride = request.stride > 0 ? request.stride : length, .sequences = request.model.sequences};
  for (const std::string& file : files) {
    windows.name = file;
    const TextScore score =
        score_text(scorer, read_scored_text(file, *model.text, config, request.model.encoding), windows);
    print(communicator,
          fmt::format("{}: {} ({}, windows of {})\n", file, score.describe(), counted(score.tokens, "token"), length));
    results.emplace_back(score)["text"] = file;
  }
  for (const std::string& path : tasks) {
    const Task task = read_task(path, *model.text, config);
    require_fitting(task, length);
    const TaskResult result = run_task(task, scorer, request.model.sequences, length);
    print(communicator, fmt::format("{}: {}\n", task.name, result.describe()));
    results.emplace_back(result)["task"] = path;
  }
  json.write(results);
}

void score(const EvaluateRequest& request, Communicator& communicator) {
  const LoadedModel model = load_scored(request.model, communicator);
  const int64_t length = window_of(request.model.context, model.config.model);
  Scorer scorer(*model.runtime, request.model.sequences, length, &communicator);
  const std::vector<int32_t> tokens =
      read_scored_text(request.text, *model.text, model.config.model, request.model.encoding).tokens;
  TextDecoder decoder(*model.text);
  decoder.add(tokens[0]);
  score_windows(
      scorer, tokens, {.length = length, .stride = length, .sequences = request.model.sequences, .name = request.text},
      [&](size_t position, float loss) {
        const int32_t token = tokens[position];
        print(communicator,
              fmt::format(
                  "{}\t{}\t{}\t{}\n", position, token, -loss,
                  nlohmann::json(decoder.add(token)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
      });
}

// As a rank of mpirun or srun, or alone. Ranks exchange little: by MPI, also for GPUs.
int run_scoring(void (*body)(const EvaluateRequest&, Communicator&), const EvaluateRequest& request) {
  const auto configure = [&] {
    std::vector<std::string> settings = request.model.overrides;  // the others are those of the model, read later
    std::erase_if(settings, [](const std::string& setting) { return !setting.starts_with("watchdog"); });
    Config job = parse_config("data: {train: [unused]}\n", "", settings);
    job.comm.backend = launcher_size() > 1 ? "mpi" : "local";
    return job;
  };
  return run_job(configure, [&](const Config&, Communicator& communicator) { body(request, communicator); });
}

void add_window_options(CLI::App* verb, ScoredModel& model) {
  VerbOptions(*verb).count("--context", model.context, 0, kMostTokens,
                           "tokens in a window; 0: model.context, at most 2048");
  verb->add_flag("!--no-special-tokens", model.encoding.add_special_tokens, kNoSpecialTokensHelp);
  VerbOptions(*verb).count("--batch", model.sequences, 1, int64_t{1} << 20, "windows in a pass");
}

}  // namespace

void add_evaluate(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* command = app.add_subcommand("evaluate", "Tell how well a model predicts texts, or answers questions");
  const auto request = std::make_shared<EvaluateRequest>();
  command->add_option("model", request->model.path, kModelHelp)->required();
  command->add_option("overrides", request->model.overrides, "settings that replace the run's: precision.compute=fp32");
  VerbOptions options(*command);
  options.files("--text", request->texts, request->model.overrides,
                "files, folders or patterns: perplexity and bits per byte of each file");
  options.files("--tasks", request->tasks, request->model.overrides,
                "multiple choice: JSON lines, or llm.c's hellaswag_val.bin");
  add_window_options(command, request->model);
  VerbOptions(*command).count("--stride", request->stride, 0, kMostTokens,
                              "tokens from a window to the next; 0: windows do not overlap");
  VerbOptions(*command).json(request->json);
  verbs.push_back(
      {command, "evaluate runs/quickstart --text my/text", [request] { return run_scoring(evaluate, *request); }});
}

void add_score(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* command = app.add_subcommand("score", "Print the log-probability of each token of a text");
  const auto request = std::make_shared<EvaluateRequest>();
  command->add_option("model", request->model.path, kModelHelp)->required();
  command->add_option("text", request->text, "file")->required();
  command->add_option("overrides", request->model.overrides, "settings that replace the run's: precision.compute=fp32");
  add_window_options(command, request->model);
  verbs.push_back(
      {command, "score runs/quickstart my/text/held-out.txt", [request] { return run_scoring(score, *request); }});
}

}  // namespace mantissa
