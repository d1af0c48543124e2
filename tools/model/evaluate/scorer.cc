#include "tools/model/evaluate/scorer.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <numbers>

#include "core/base/check.h"
#include "core/base/log.h"
#include "core/base/progress_bar.h"
#include "core/base/wrapped_text.h"
#include "core/io/files.h"
#include "core/io/json_node.h"
#include "core/ops/cross_entropy.h"
#include "tools/run/guard/watchdog.h"
#include "tools/text/document_reader.h"
#include "tools/text/unpacker.h"

namespace mantissa {
namespace {

constexpr char kNotFinite[] =  // ranks know all losses, and so fail alike
    "{}: the loss of {} {} is not finite: the model's weights are not, or its activations exceed the range of its "
    "precision; precision.compute=fp32 has the widest";

double bits_per_byte(const TextScore& score) {
  return score.nats / std::numbers::ln2 / static_cast<double>(score.bytes);
}

using nlohmann::json;

constexpr int32_t kHellaSwagMagic = 20240522;

// Code points of UTF-8 text.
double characters(const std::string& text) {
  return static_cast<double>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

// The continuation keeps the spaces at the end of the context: tokens begin with a space more often than they end so.
Choice encode_choice(const TextCodec& text, std::string context, std::string continuation) {
  const size_t end = context.find_last_not_of(" \n\t\r\f\v") + 1;
  continuation = context.substr(end) + continuation;
  context.resize(end);
  std::vector<int32_t> begin = text.encode(context);
  Choice choice{.tokens = text.encode(context + continuation), .first = begin.size()};
  if (choice.first == 0) {  // something must come before the first token
    const Tokenizer* const tokenizer = text.tokenizer();
    const std::optional<int32_t> start = tokenizer == nullptr ? std::optional<int32_t>('\n')
                                         : tokenizer->bos()   ? tokenizer->bos()
                                                              : tokenizer->eos();
    if (!start) throw DataError("a context is empty, and the tokenizer has no token for the beginning of a text");
    choice.tokens.insert(choice.tokens.begin(), *start);
    choice.first = 1;
  }
  if (choice.tokens.size() <= choice.first) throw DataError("a choice is empty");
  return choice;
}

Question read_question(const json& line, const TextCodec& text) {
  const std::string context = line.at("context"), delimiter = line.value("delimiter", " ");
  const json& label = line.at("label");
  require<DataError>(label.is_number_unsigned(), "label: expected an index, got {}", label.dump());
  Question question{.choices = {}, .label = label.get<size_t>()};
  for (const json& one : line.at("choices")) {
    const std::string continuation = one;
    question.choices.push_back(encode_choice(text, context, delimiter + continuation));
    question.choices.back().length = std::max(characters(continuation), 1.0);
  }
  require<DataError>(question.choices.size() >= 2, "expected at least 2 choices");
  require<DataError>(question.label < question.choices.size(), "label: expected 0 to {}, got {}",
                     question.choices.size() - 1, question.label);
  return question;
}

Task read_lines(const std::string& path, std::string_view lines, const TextCodec& text) {
  require<DataError>(text.is_text(), "{}: the model has no tokenizer: text cannot be scored", path);
  Task task{.name = std::filesystem::path(path).stem().string(), .questions = {}, .length_unit = "characters"};
  for_each_line(lines, [&](size_t number, std::string_view line) {
    try {
      task.questions.push_back(read_question(JsonNode::parse(line), text));
      report_progress();
    } catch (const json::exception& error) {
      throw DataError("{}:{}: expected {{\"context\": TEXT, \"choices\": [TEXT, ...], \"label\": INDEX}}: {}", path,
                      number, error.what());
    } catch (const DataError& error) {
      throw DataError("{}:{}: {}", path, number, error.what());
    }
  });
  return task;
}

Task read_hellaswag(const std::string& path, std::span<const std::byte> bytes, int64_t vocab) {
  int32_t header[3];
  std::memcpy(header, bytes.data(), sizeof(header));
  require<DataError>(header[1] == 1, "{}: expected version 1, got {}", path, header[1]);
  std::vector<uint16_t> stream((bytes.size() - 1024) / 2);
  std::memcpy(stream.data(), bytes.data() + 1024, stream.size() * 2);
  Task task{.name = "hellaswag", .questions = {}, .length_unit = "tokens"};
  size_t at = 0;
  const auto next = [&]() -> uint16_t {
    if (at >= stream.size()) throw DataError("{}: it ends within an example", path);
    return stream[at++];
  };
  const auto read_tokens = [&](std::vector<int32_t>& tokens) {
    for (size_t left = next(); left > 0; --left) {
      tokens.push_back(next());
      require<DataError>(tokens.back() < vocab, "{}: token {} is outside of the vocabulary of {}", path, tokens.back(),
                         vocab);
    }
  };
  for (int32_t example = 0; example < header[2]; ++example) {
    const auto expect = [&](bool is_right, const std::string& problem) {
      if (!is_right) throw DataError("{}: example {}: {}; copy the file again", path, example, problem);
    };
    const size_t begin = at;
    const uint16_t start = next();
    expect(start == 65535, fmt::format("it must begin with 65535, got {}", start));
    const size_t length_bytes = next();
    next();  // its index
    Question question{.choices = {}, .label = next()};
    const size_t choices = next();
    std::vector<int32_t> context;
    read_tokens(context);
    for (size_t i = 0; i < choices; ++i) {
      Choice choice{.tokens = context, .first = context.size()};
      read_tokens(choice.tokens);
      choice.length = static_cast<double>(choice.tokens.size() - choice.first);
      question.choices.push_back(std::move(choice));
    }
    expect((at - begin) * 2 == length_bytes,
           fmt::format("it has {} bytes, and its header says {}", (at - begin) * 2, length_bytes));
    expect(question.label < choices, fmt::format("the label is {} of {} choices", question.label, choices));
    expect(!context.empty(), "its context is empty");
    expect(std::ranges::none_of(question.choices, [](const Choice& choice) { return choice.length == 0.0; }),
           "a choice is empty");
    task.questions.push_back(std::move(question));
  }
  require<DataError>(at == stream.size() && bytes.size() % 2 == 0, "{}: it goes on after its {} examples", path,
                     header[2]);
  return task;
}

}  // namespace

Scorer::Scorer(ModelRuntime& runtime, int64_t sequences, int64_t length, Communicator* communicator)
    : runtime_(runtime), communicator_(communicator) {
  tokens_ = runtime.backend->make_tensor(DType::kI32, {sequences * length}, "scored tokens");
  targets_ = runtime.backend->make_tensor(DType::kI32, {sequences * length}, "scored targets");
}

void Scorer::run_dry(ModelRuntime& runtime, int64_t sequences, int64_t length) {
  const Tensor tokens = runtime.backend->make_tensor(DType::kI32, {sequences * length}, "scored tokens");
  Tape tape = runtime.make_tape({.mode = TapeMode::kEvaluation});
  runtime.model->loss(tape, tokens, tokens, length);
}

std::vector<float> Scorer::losses(std::span<const int32_t> tokens, std::span<const int32_t> targets, int64_t length) {
  Backend& backend = *runtime_.backend;
  Stream& stream = *runtime_.stream;
  const auto count = static_cast<int64_t>(tokens.size());
  MANTISSA_CHECK(tokens.size() == targets.size() && count <= tokens_.numel() && count % length == 0,
                 "[scorer] {} tokens, {} targets, sequences of {}, room for {}", count, targets.size(), length,
                 tokens_.numel());
  const Tensor inputs = tokens_.slice(0, count), wanted = targets_.slice(0, count);
  backend.upload(tokens.data(), inputs, stream);
  backend.upload(targets.data(), wanted, stream);
  Tape tape = runtime_.make_tape({.mode = TapeMode::kEvaluation});
  const Tensor losses = runtime_.model->loss(tape, inputs, wanted, length).losses;
  std::vector<float> result(tokens.size());
  if (losses.dtype() == DType::kF32) {
    backend.download(losses, result.data(), stream);
    return result;
  }
  std::vector<double> wide(tokens.size());
  backend.download(losses, wide.data(), stream);
  std::copy(wide.begin(), wide.end(), result.begin());
  return result;
}

void Scorer::run(size_t count, const std::function<ScoredPass(size_t pass)>& make,
                 const std::function<void(size_t pass, std::span<const float> losses)>& take) {
  const size_t ranks = communicator_ != nullptr ? static_cast<size_t>(communicator_->size()) : 1;
  const size_t rank = ranks > 1 ? static_cast<size_t>(communicator_->rank()) : 0;
  ProgressBar progress("score: passes", static_cast<int64_t>(count));
  for (size_t first = 0; first < count; first += ranks) {
    std::vector<std::vector<float>> round(1);
    if (first + rank < count) {
      const ScoredPass pass = make(first + rank);
      round[0] = losses(pass.tokens, pass.targets, pass.length);
    }
    if (ranks > 1) round = all_gather_arrays(*communicator_, round[0]);
    for (size_t i = 0; i < ranks && first + i < count; ++i) take(first + i, round[i]);
    report_progress();
    progress.reach(static_cast<int64_t>(first + ranks));
  }
}

void score_windows(Scorer& scorer, std::span<const int32_t> tokens, const WindowOptions& options,
                   const std::function<void(size_t position, float loss)>& take) {
  const auto length = static_cast<size_t>(options.length), stride = static_cast<size_t>(options.stride),
             rows = static_cast<size_t>(options.sequences);
  // Windows until one reaches the last token.
  const size_t behind_first = tokens.size() - 1 > length ? tokens.size() - 1 - length : 0;
  const size_t windows = tokens.size() < 2 ? 0 : 1 + (behind_first + stride - 1) / stride;
  size_t next = 1;  // the first token that has no score yet
  const auto make = [&](size_t pass) {
    ScoredPass made{.tokens = std::vector<int32_t>(rows * length),
                    .targets = std::vector<int32_t>(rows * length, kIgnoreIndex),
                    .length = options.length};
    for (size_t row = 0; row < rows && pass * rows + row < windows; ++row) {
      const size_t first = (pass * rows + row) * stride, count = std::min(length, tokens.size() - 1 - first);
      const auto from = tokens.begin() + static_cast<std::ptrdiff_t>(first);
      const auto to = static_cast<std::ptrdiff_t>(row * length);
      std::copy_n(from, count, made.tokens.begin() + to);
      std::copy_n(from + 1, count, made.targets.begin() + to);
    }
    return made;
  };
  scorer.run((windows + rows - 1) / rows, make, [&](size_t pass, std::span<const float> losses) {
    for (size_t row = 0; row < rows && next < tokens.size(); ++row) {
      const size_t first = (pass * rows + row) * stride;
      for (; next <= first + length && next < tokens.size(); ++next) {
        const float loss = losses[row * length + next - first - 1];
        require<FaultError>(std::isfinite(loss), kNotFinite, options.name, "token", next);
        take(next, loss);
      }
    }
  });
}

ScoredText read_scored_text(const std::string& path, const TextCodec& text, const ModelConfig& model,
                            EncodeOptions options) {
  const TextFile file(path);
  ScoredText read{.tokens = text.encode(file.text(), options),
                  .bytes = text.is_text() ? static_cast<int64_t>(file.text().size()) : 0};
  const std::string doubt = why_no_single_text(path, file.text(), "text");
  if (!doubt.empty()) log_common_warning("{}: {}; the whole file is scored as one text", path, doubt);
  for (const int32_t token : read.tokens) {
    require<DataError>(token >= 0 && token < model.vocab, "{}: token {} is outside of the vocabulary of {}", path,
                       token, model.vocab);
  }
  require<DataError>(read.tokens.size() >= 2, "{}: expected at least 2 tokens, got {}", path, read.tokens.size());
  return read;
}

std::string TextScore::describe() const {
  std::string text = fmt::format("perplexity {:.4f}, {:.5f} nats per token", std::exp(loss()), loss());
  if (bytes > 0) text += fmt::format(", {:.4f} bits per byte", bits_per_byte(*this));
  return text;
}

void to_json(nlohmann::json& json, const TextScore& score) {
  json = {{"tokens", score.tokens}, {"loss", score.loss()}, {"perplexity", std::exp(score.loss())}};
  if (score.bytes > 0) json.update({{"bits_per_byte", bits_per_byte(score)}, {"bytes", score.bytes}});
}

TextScore score_text(Scorer& scorer, const ScoredText& text, const WindowOptions& options) {
  TextScore score{.bytes = text.bytes};
  score_windows(scorer, text.tokens, options, [&score](size_t, float loss) {
    score.nats += static_cast<double>(loss);
    ++score.tokens;
  });
  return score;
}

Task read_task(const std::string& path, const TextCodec& text, const ModelConfig& model) {
  const MappedFile file = map_file<DataError>(path);
  const std::span<const std::byte> bytes = file.bytes();
  int32_t magic = 0;
  if (bytes.size() >= 1024) std::memcpy(&magic, bytes.data(), sizeof(magic));
  Task task = magic == kHellaSwagMagic ? read_hellaswag(path, bytes, std::min(model.vocab, text.vocab()))
                                       : read_lines(path, TextFile(path).text(), text);
  if (task.questions.empty()) throw DataError("{}: it holds no questions", path);
  return task;
}

void require_fitting(const Task& task, int64_t length) {
  int64_t cut = 0;
  for (size_t i = 0; i < task.questions.size(); ++i) {
    bool is_cut = false;
    for (const Choice& choice : task.questions[i].choices) {
      const int64_t own = std::ssize(choice.tokens) - static_cast<int64_t>(choice.first);
      require<DataError>(own <= length, "{}: question {}: a choice has {} tokens, and the window {}: shorten it",
                         task.name, i + 1, own, length);
      is_cut |= std::ssize(choice.tokens) > length + 1;  // the last token is not read
    }
    cut += is_cut;
  }
  if (cut > 0)
    log_common_warning("{}: the window of {} tokens cuts {} of its {} questions, at the front", task.name, length, cut,
                       task.questions.size());
}

double TaskResult::error_of(double share, int64_t questions) {
  return questions > 1 ? std::sqrt(share * (1.0 - share) / static_cast<double>(questions - 1)) : 0.0;
}

std::string TaskResult::describe() const {
  return fmt::format("acc {:.4f} +- {:.4f}, acc_norm {:.4f} +- {:.4f} (by {}; {})", acc(), error_of(acc(), questions),
                     acc_norm(), error_of(acc_norm(), questions), length_unit, counted(questions, "question"));
}

void to_json(json& json, const TaskResult& result) {
  const double acc = result.acc(), norm = result.acc_norm();
  json = {{"questions", result.questions},
          {"acc", acc},
          {"acc_stderr", TaskResult::error_of(acc, result.questions)},
          {"acc_norm", norm},
          {"acc_norm_stderr", TaskResult::error_of(norm, result.questions)}};
}

TaskResult run_task(const Task& task, Scorer& scorer, int64_t sequences, int64_t length) {
  struct Place {
    size_t question;
    const Choice* choice;
    double* sum;  // of the log-probabilities of its continuation
  };
  std::vector<Place> places;
  std::vector<std::vector<double>> sums(task.questions.size());
  for (size_t i = 0; i < sums.size(); ++i) {
    sums[i].resize(task.questions[i].choices.size());
    for (size_t j = 0; j < sums[i].size(); ++j) places.push_back({i, &task.questions[i].choices[j], &sums[i][j]});
  }
  // Sequences of similar length run together, since padding costs computation.
  std::ranges::stable_sort(places, std::greater{}, [](const Place& place) { return place.choice->tokens.size(); });
  const auto rows_of = [&](size_t pass) {
    const size_t begin = pass * static_cast<size_t>(sequences);
    return std::span(places).subspan(begin, std::min(static_cast<size_t>(sequences), places.size() - begin));
  };
  const auto make = [&](size_t pass) {
    const std::span<const Place> rows = rows_of(pass);
    // The longest one comes first. The first token is read only, the last one predicted only.
    const size_t width = std::min(rows[0].choice->tokens.size() - 1, static_cast<size_t>(length));
    ScoredPass made{.tokens = std::vector<int32_t>(rows.size() * width),
                    .targets = std::vector<int32_t>(rows.size() * width, kIgnoreIndex),
                    .length = static_cast<int64_t>(width)};
    for (size_t row = 0; row < rows.size(); ++row) {
      const Choice& choice = *rows[row].choice;
      const size_t cut = choice.tokens.size() - 1 > width ? choice.tokens.size() - 1 - width : 0;
      for (size_t i = cut; i + 1 < choice.tokens.size(); ++i) {
        made.tokens[row * width + i - cut] = choice.tokens[i];
        if (i + 1 >= choice.first) made.targets[row * width + i - cut] = choice.tokens[i + 1];
      }
    }
    return made;
  };
  const size_t passes = (places.size() + static_cast<size_t>(sequences) - 1) / static_cast<size_t>(sequences);
  scorer.run(passes, make, [&](size_t pass, std::span<const float> losses) {
    const std::span<const Place> rows = rows_of(pass);
    const size_t width = losses.size() / rows.size();
    for (size_t row = 0; row < rows.size(); ++row) {
      double& sum = *rows[row].sum;
      for (const float loss : losses.subspan(row * width, width)) sum -= static_cast<double>(loss);
      require<FaultError>(std::isfinite(sum), kNotFinite, task.name, "question", rows[row].question + 1);
    }
  });
  TaskResult result{.length_unit = task.length_unit, .questions = static_cast<int64_t>(task.questions.size())};
  for (size_t i = 0; i < task.questions.size(); ++i) {
    const Question& question = task.questions[i];
    const auto is_right = [&](const std::vector<double>& scores) {  // the first of equal ones, as numpy's argmax
      return static_cast<size_t>(std::ranges::max_element(scores) - scores.begin()) == question.label;
    };
    std::vector<double> by_length = sums[i];
    for (size_t j = 0; j < by_length.size(); ++j) by_length[j] /= question.choices[j].length;
    result.right += is_right(sums[i]);
    result.right_by_length += is_right(by_length);
  }
  return result;
}

}  // namespace mantissa
