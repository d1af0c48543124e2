#include "tools/evaluate/evaluate_verb.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numbers>

#include "core/base/log.h"
#include "core/base/wrapped_text.h"
#include "core/io/data_kind.h"
#include "tools/config/data_paths.h"
#include "tools/evaluate/choice_tasks.h"
#include "tools/evaluate/windows.h"

namespace mantissa {
namespace {

constexpr int64_t kLongWindow = 2048;  // longer ones take more memory, and change a perplexity little

int64_t window_of(int64_t wanted, const ModelConfig& model) {
  if (wanted == 0) return std::min(model.context, kLongWindow);
  if (wanted > model.context && model.position == Position::kLearned) {
    throw ConfigError(fmt::format("--context {}: the model has positions for {} tokens", wanted, model.context));
  }
  return wanted;
}

LoadedModel load_scored(const std::string& path, const std::vector<std::string>& overrides, int64_t context,
                        int64_t sequences) {
  LoadedModel model = load_model(path, overrides, [&](ModelRuntime& runtime, const Config& config) {
    require_causal(*runtime.model, config.model);
    Scorer::run_dry(runtime, sequences, window_of(context, config.model));
  });
  return model;
}

std::string read_text(const std::string& path) {
  const MappedFile file = map_file<DataError>(path);
  const std::string packed = why_packed(file.bytes());
  if (!packed.empty()) throw DataError(fmt::format("{}: {}", path, packed));
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

std::vector<int32_t> encode_file(const std::string& path, const std::string& text, const LoadedModel& model) {
  std::vector<int32_t> tokens = model.text->encode(text);
  for (const int32_t token : tokens) {
    if (token < 0 || token >= model.config.model.vocab) {
      throw DataError(
          fmt::format("{}: token {} is outside of the vocabulary of {}", path, token, model.config.model.vocab));
    }
  }
  if (tokens.size() < 2) throw DataError(fmt::format("{}: expected at least 2 tokens, got {}", path, tokens.size()));
  return tokens;
}

nlohmann::json evaluate_text(const std::string& path, const LoadedModel& model, Scorer& scorer,
                             const WindowOptions& options) {
  const std::string text = read_text(path);
  const std::vector<int32_t> tokens = encode_file(path, text, model);
  double nats = 0.0;
  int64_t count = 0;
  score_windows(scorer, tokens, options, [&](size_t, float loss) {
    nats += static_cast<double>(loss);
    ++count;
  });
  const double loss = nats / static_cast<double>(count), perplexity = std::exp(loss);
  nlohmann::json result = {{"text", path}, {"tokens", count}, {"loss", loss}, {"perplexity", perplexity}};
  std::string line = fmt::format("{}: perplexity {:.4f}, {:.5f} nats a token", path, perplexity, loss);
  if (model.text->is_text()) {
    const double bits = nats / std::numbers::ln2 / static_cast<double>(text.size());
    result["bits_per_byte"] = bits;
    result["bytes"] = text.size();
    line += fmt::format(", {:.4f} bits a byte", bits);
  }
  std::printf("%s (%s, windows of %ld)\n", line.c_str(), counted(count, "token").c_str(),
              static_cast<long>(options.length));
  return result;
}

nlohmann::json evaluate_task(const std::string& path, const LoadedModel& model, Scorer& scorer, int64_t sequences,
                             int64_t length) {
  const Task task = read_task(path, *model.text, model.config.model);
  const TaskResult result = run_task(task, scorer, sequences, length);
  const double acc = result.acc(), norm = result.acc_norm();
  const double acc_error = TaskResult::error_of(acc, result.questions),
               norm_error = TaskResult::error_of(norm, result.questions);
  std::printf("%s: acc %.4f +- %.4f, acc_norm %.4f +- %.4f (by %s; %s)\n", task.name.c_str(), acc, acc_error, norm,
              norm_error, task.length_unit.c_str(), counted(result.questions, "question").c_str());
  return {{"task", path},     {"questions", result.questions}, {"acc", acc}, {"acc_stderr", acc_error},
          {"acc_norm", norm}, {"acc_norm_stderr", norm_error}};
}

void evaluate(const EvaluateRequest& request) {
  if (request.texts.empty() && request.tasks.empty()) {
    throw ConfigError("nothing to evaluate on: give --text FILES or --tasks FILES");
  }
  const LoadedModel model = load_scored(request.model, request.overrides, request.context, request.sequences);
  const int64_t length = window_of(request.context, model.config.model);
  if (request.stride > length) {
    throw ConfigError(fmt::format("--stride {}: expected at most the window, {} tokens", request.stride, length));
  }
  Scorer scorer(*model.runtime, request.sequences, length);
  nlohmann::json results = nlohmann::json::array();
  for (const std::string& pattern : in_folders(request.texts, DataFormat::kBytes)) {
    for (const std::string& file : expand_glob(pattern)) {
      results.push_back(evaluate_text(
          file, model, scorer,
          {.length = length, .stride = request.stride > 0 ? request.stride : length, .sequences = request.sequences}));
    }
  }
  for (const std::string& task : request.tasks) {
    results.push_back(evaluate_task(task, model, scorer, request.sequences, length));
  }
  if (request.json.empty()) return;
  if (const int error = replace_file(request.json, results.dump(2) + "\n"); error != 0) {
    throw DataError(fmt::format("{}: cannot be written: {}", request.json, std::generic_category().message(error)));
  }
}

void score(const ScoreRequest& request) {
  const LoadedModel model = load_scored(request.model, request.overrides, request.context, request.sequences);
  const int64_t length = window_of(request.context, model.config.model);
  Scorer scorer(*model.runtime, request.sequences, length);
  const std::vector<int32_t> tokens = encode_file(request.text, read_text(request.text), model);
  const auto decode = model.text->decoder();
  decode(tokens[0]);
  score_windows(scorer, tokens, {.length = length, .stride = length, .sequences = request.sequences},
                [&](size_t position, float loss) {
                  const int32_t token = tokens[position];
                  const std::string line = fmt::format(
                      "{}\t{}\t{}\t{}\n", position, token, -loss,
                      nlohmann::json(decode(token)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
                  std::fwrite(line.data(), 1, line.size(), stdout);
                });
}

}  // namespace

int evaluate_verb(const EvaluateRequest& request) {
  return run_reported([&] { evaluate(request); });
}

int score_verb(const ScoreRequest& request) {
  return run_reported([&] { score(request); });
}

}  // namespace mantissa
