#include "tools/model/verbs.h"

#include <algorithm>
#include <optional>
#include <set>

#include "core/base/check.h"
#include "core/base/log.h"
#include "core/base/progress_bar.h"
#include "core/base/wrapped_text.h"
#include "core/io/files.h"
#include "core/io/json_node.h"
#include "tools/config/data_paths.h"
#include "tools/model/generate/generator.h"
#include "tools/model/generate/stop_strings.h"
#include "tools/model/runtime/loaded_model.h"
#include "tools/model/runtime/open_model.h"
#include "tools/text/chat/chat_template.h"
#include "tools/text/document_reader.h"
#include "tools/text/unpacker.h"

namespace mantissa {
namespace {

// The command line. Exactly one of the first four is given.
struct PromptChoice {
  std::optional<std::string> prompt{};                 // text; for a model of token files without a tokenizer, numbers
  std::optional<std::string> chat{};                   // what the user says
  std::optional<std::string> messages{};               // a JSON file with a list of messages
  std::optional<std::string> prompts{};                // a file with a prompt or conversation a line
  std::optional<std::string> system{};                 // the system message of conversations without their own
  std::string chat_template{};                         // a name, in place of the model's own template
  EncodeOptions encoding{.add_special_tokens = true};  // of prompts that are no conversations
  bool no_truncate = false;                            // prompts and texts stay within the context
};

struct Prompt {
  std::string where;  // an option, or file and line
  std::string text;   // as given; for conversations as the model reads it
  std::vector<int32_t> tokens;
  bool is_chat = false;
};

struct PromptList {
  std::vector<Prompt> prompts;
  std::string end_of_turn{};  // where there are conversations
};

struct GenerateRequest {
  std::string run;                     // as for train.init_from
  std::vector<std::string> overrides;  // settings such as precision.compute=fp32
  PromptChoice prompts;
  SamplingOptions sampling;
  std::vector<std::string> stops;  // strings that end a text
  int64_t batch = 8;               // prompts of a file that are continued at a time
};

// `where`: an option, whose errors are the command line's, or a line of a file.
[[noreturn]] void refuse_text(const std::string& where, std::string_view problem) {
  if (where.starts_with("--")) throw ConfigError("{}: {}", where, problem);
  throw DataError("{}: {}", where, problem);
}

// f(), which takes the text of `where`.
template <typename F>
auto take_text(const std::string& where, const F& f) {
  try {
    return f();
  } catch (const DataError& error) {
    refuse_text(where, error.what());
  }
}

class PromptReader {
 public:
  // `context`: how many tokens the model sees.
  PromptReader(const PromptChoice& choice, const std::string& model, const TextCodec& codec, int64_t context)
      : choice_(choice), model_(model), codec_(codec), context_(context) {}

  void add_text(const std::string& where, const std::string& text) {
    Prompt prompt{.where = where, .text = text, .tokens = {}};
    prompt.tokens = take_text(where, [&] { return codec_.encode(text, choice_.encoding); });
    const int64_t whole = std::ssize(prompt.tokens);
    add(std::move(prompt), whole);
  }

  bool has_chats() const { return template_.has_value(); }
  // Leaves out the oldest turns after the system message, as many as do not fit into the context.
  void add_chat(const std::string& where, std::vector<ChatMessage> messages) {
    require<ConfigError>(codec_.is_text(), "{}: the model has no tokenizer: it reads no conversations", model_);
    if (choice_.system && (messages.empty() || messages.front().role != "system")) {
      messages.insert(messages.begin(), {.role = "system", .content = *choice_.system});
    }
    if (!template_) find_template();
    Prompt prompt = conversation(where, messages);
    const int64_t whole = std::ssize(prompt.tokens);
    const std::ptrdiff_t oldest = messages.front().role == "system" ? 1 : 0;
    while (std::ssize(prompt.tokens) > context_ && std::ssize(messages) > oldest) {
      const auto begin = messages.begin() + oldest;
      const auto next = std::ranges::find(begin + 1, messages.end(), "user", &ChatMessage::role);
      if (next == messages.end()) break;
      messages.erase(begin, next);
      prompt = conversation(where, messages);
    }
    add(std::move(prompt), whole);
  }

  void add_line(const std::string& where, std::string_view line) {
    nlohmann::json json;
    try {
      json = JsonNode::parse(line);
    } catch (const nlohmann::json::exception&) {
      throw DataError("{}: not valid JSON; expected {{\"prompt\": TEXT}} or {{\"messages\": [...]}}", where);
    }
    const JsonNode node(json, where);
    if (const auto messages = node.find("messages")) {
      if (node.find("prompt")) node.fail("it has both 'prompt' and 'messages': expected one of the two");
      return add_chat(where, chat_messages(*messages));
    }
    add_text(where, node.at("prompt").text());
  }

  void add_file(const std::string& path) {
    const TextFile file(path);
    const bool is_json = has_suffix(unpacked_name(path), {".jsonl", ".ndjson", ".json"});
    std::string doubt = is_json ? "" : why_no_single_text(path, file.text(), "prompt");
    if (!is_json && doubt.empty()) doubt = why_no_single_text(path, file.text(), "messages");
    if (!doubt.empty()) log_warn("{}: {}; each line is a prompt; name files of JSON lines *.jsonl", path, doubt);
    int64_t last = 0, used = 0;
    for_each_line(file.text(), [&](size_t number, std::string_view line) {
      last = static_cast<int64_t>(number);
      ++used;
      const std::string where = fmt::format("{}:{}", path, number);
      if (!is_json) return add_text(where, std::string(line));
      add_line(where, line);
    });
    require<DataError>(!list_.prompts.empty(), "{}: the file has no prompt", path);
    const bool has_gaps = !is_json && last > used;
    if (has_gaps) log_warn("{}: {} give no output", path, counted(last - used, "blank line"));
  }

  PromptList take() { return std::move(list_); }

 private:
  Prompt conversation(const std::string& where, std::span<const ChatMessage> messages) const {
    Prompt prompt{.where = where, .text = {}, .tokens = {}, .is_chat = true};
    for (const ChatPiece& piece : template_->render(messages, AnswerHeader::kAppend)) {
      prompt.text += piece.text;
      const std::vector<int32_t> tokens =
          take_text(where, [&] { return codec_.encode(piece.text, {.has_marks = true}); });
      prompt.tokens.insert(prompt.tokens.end(), tokens.begin(), tokens.end());
    }
    return prompt;
  }

  // `whole`: its tokens with all turns. The generator sees the last tokens that fit.
  void add(Prompt prompt, int64_t whole) {
    const int64_t left = std::ssize(prompt.tokens), out = whole - std::min(left, context_);
    if (out > 0 && choice_.no_truncate) {
      refuse_text(prompt.where, fmt::format("it has {} tokens: expected at most {}, the model's context; shorten it, "
                                            "or leave out --no-truncate",
                                            whole, context_));
    }
    if (out > 0) {
      log_warn("{}: it has {} tokens, and the model's context {}: {} tokens {} are left out", prompt.where, whole,
               context_, out, left > context_ ? "at its start" : "of its oldest turns");
    }
    list_.prompts.push_back(std::move(prompt));
  }

  void find_template() {
    const std::string folder = carried_folder(model_);
    template_ = choice_.chat_template.empty() ? find_chat_template(folder.empty() ? model_ : folder, "--chat-template")
                                              : mantissa::chat_template(choice_.chat_template);
    list_.end_of_turn = template_->end_of_turn();
  }

  const PromptChoice& choice_;
  const std::string& model_;
  const TextCodec& codec_;
  const int64_t context_;
  std::optional<ChatTemplate> template_;
  PromptList list_;
};

// `model`: where the chat template is looked for. In files *.jsonl, *.ndjson and *.json, a line is {"prompt": TEXT} or
// {"messages": [...]}; in others it is a prompt. ConfigError for options that do not fit; DataError naming file and
// line.
PromptList read_prompts(const PromptChoice& choice, const std::string& model, const TextCodec& codec, int64_t context) {
  const int given = static_cast<int>(choice.prompt.has_value()) + static_cast<int>(choice.chat.has_value()) +
                    static_cast<int>(choice.messages.has_value()) + static_cast<int>(choice.prompts.has_value());
  require<ConfigError>(given == 1, "give one of --prompt, --chat, --messages and --prompts, got {} of them", given);
  PromptReader reader(choice, model, codec, context);
  if (choice.prompt) reader.add_text("--prompt", *choice.prompt);
  if (choice.chat) reader.add_chat("--chat", {{.role = "user", .content = *choice.chat}});
  if (choice.messages) {
    const nlohmann::json json = JsonNode::read(*choice.messages);
    reader.add_chat(*choice.messages, chat_messages({json, *choice.messages}));
  }
  if (choice.prompts) reader.add_file(*choice.prompts);
  require<ConfigError>(reader.has_chats() || (!choice.system && choice.chat_template.empty()),
                       "--system and --chat-template are for conversations: {}",
                       choice.prompts ? *choice.prompts + " has none" : "give --chat, --messages or --prompts");
  return reader.take();
}

// The model with a context of no more than the texts take: theirs may be short, and that of the model long.
ModelConfig sized_for(const PromptList& list, int64_t new_tokens, ModelConfig model) {
  int64_t longest = 1;
  for (const Prompt& prompt : list.prompts) longest = std::max(longest, std::ssize(prompt.tokens) + new_tokens);
  model.context = padded_length(longest, model.context);
  return model;
}

// Tokens that end a text, from the tokenizer, Hugging Face's files and a chat's turns.
std::set<int32_t> end_tokens(const std::string& model, const TextCodec& codec, const std::string& end_of_turn) {
  std::set<int32_t> ends = end_ids(model);
  if (const Tokenizer* const tokenizer = codec.tokenizer()) {
    if (const auto end = tokenizer->eos()) ends.insert(*end);
    if (const auto end = tokenizer->id_of(end_of_turn)) ends.insert(*end);
  }
  return ends;
}

// Prints the text of a single prompt as it grows, and those of a file as lines of JSON in the file's order.
class TextPrinter {
 public:
  // `list` and `request` outlive the object. `ends`: tokens that end a text.
  TextPrinter(const GenerateRequest& request, const PromptList& list, const TextCodec& codec, std::set<int32_t> ends)
      : request_(request), prompts_(list.prompts), ends_(std::move(ends)) {
    std::vector<std::string> stops = request.stops;
    stops.push_back(list.end_of_turn);  // for a tokenizer that has no such token
    for (const Prompt& prompt : prompts_) {
      Text& text = texts_.emplace_back(Text{.decoder = TextDecoder(codec), .stops = StopStrings(stops), .line = {}});
      if (codec.tokenizer() == nullptr) continue;
      for (const int32_t token : prompt.tokens) text.decoder.add(token);  // the prompt may end within a character
    }
    if (!is_file_ && !prompts_[0].is_chat) ProgressBar::print(prompts_[0].text);
  }

  Continue add(size_t index, int32_t token) {
    Text& text = texts_[index];
    if (ends_.contains(token)) return finish(index, "token");
    show(text, text.stops.add(text.decoder.add(token)));
    if (text.stops.found()) return finish(index, "stop");
    return ++text.added == request_.sampling.tokens ? finish(index, "length") : Continue::kYes;
  }
  // The context is full: the model no longer sees the first `left_out` tokens.
  Continue fill(size_t index, int64_t left_out) {
    texts_[index].left_out = left_out;
    return request_.prompts.no_truncate ? finish(index, "context") : Continue::kYes;
  }
  Continue finish(size_t index, const char* end) {
    Text& text = texts_[index];
    show(text, text.stops.add(text.decoder.finish()));
    show(text, text.stops.finish());
    text.end = end;
    for (; is_file_ && next_ < texts_.size() && texts_[next_].end != nullptr; ++next_) {
      const nlohmann::ordered_json line = {
          {"prompt", prompts_[next_].text}, {"text", texts_[next_].line}, {"end", texts_[next_].end}};
      ProgressBar::print(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    }
    progress_.advance();
    return Continue::kNo;
  }

  // After all texts. `context`: how many tokens the model sees.
  void end(int64_t context) const {
    if (!is_file_) ProgressBar::print("\n");
    const auto is_full = [](const Text& text) { return text.left_out > 0; };
    const auto first = static_cast<size_t>(std::ranges::find_if(texts_, is_full) - texts_.begin());
    if (first == texts_.size()) return;
    const std::string how =
        request_.prompts.no_truncate
            ? "the text ends there"
            : fmt::format("at its end, the model no longer saw the first {} tokens{}; --no-truncate ends a text there",
                          texts_[first].left_out, prompts_[first].is_chat ? ", any system message among them" : "");
    const auto count = std::ranges::count_if(texts_, is_full);
    log_warn("{}: with its text it has filled the model's context of {} tokens{}: {}", prompts_[first].where, context,
             count > 1 ? fmt::format(", as have {} texts in all", count) : "", how);
  }

 private:
  struct Text {
    TextDecoder decoder;
    StopStrings stops;
    std::string line;           // where it is printed at its end
    const char* end = nullptr;  // not there yet
    int64_t added = 0, left_out = 0;
  };
  void show(Text& text, const std::string& piece) const {
    if (!is_file_) return ProgressBar::print(piece);
    text.line += piece;
  }

  const GenerateRequest& request_;
  const std::vector<Prompt>& prompts_;
  const std::set<int32_t> ends_;
  const bool is_file_ = request_.prompts.prompts.has_value();
  ProgressBar progress_{"generate: texts", is_file_ ? std::ssize(prompts_) : 0};
  std::vector<Text> texts_;
  size_t next_ = 0;
};

void generate(const GenerateRequest& request) {
  request.sampling.filters.require_valid();
  GeneratorOptions options{.batch = request.prompts.prompts ? request.batch : 1, .keeps_packed = true};
  PromptList list;
  ModelConfig sized;
  const LoadedModel model =
      load_model(request.run, request.overrides, [&](ModelRuntime& dry, const LoadedModel& found) {
        list = read_prompts(request.prompts, request.run, *found.text, found.config.model.context);
        sized = sized_for(list, request.sampling.tokens, found.config.model);
        generate_dry(dry, sized, options);
      });
  options.vocab = model.text->vocab();
  Generator generator(*model.runtime, sized, options);
  std::vector<std::vector<int32_t>> prompts;
  for (const Prompt& prompt : list.prompts) {
    take_text(prompt.where, [&] { generator.require_valid(prompt.tokens, request.sampling); });
    prompts.push_back(prompt.tokens);
  }
  TextPrinter printer(request, list, *model.text, end_tokens(request.run, *model.text, list.end_of_turn));
  for (size_t i = 0; request.sampling.tokens == 0 && i < prompts.size(); ++i) printer.finish(i, "length");
  generator.run(
      prompts, request.sampling, [&](size_t index, int32_t token) { return printer.add(index, token); },
      [&](size_t index, int64_t left_out) { return printer.fill(index, left_out); });
  printer.end(sized.context);
}

}  // namespace

void add_generate(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* command = app.add_subcommand("generate", "Continue prompts or answer messages with a trained model");
  const auto request = std::make_shared<GenerateRequest>();
  PromptChoice& prompts = request->prompts;
  SamplingFilters& filters = request->sampling.filters;
  command->add_option("run", request->run, kModelHelp)->required();
  command->add_option("overrides", request->overrides, "settings that replace the run's: precision.compute=fp32");
  command->add_option("--prompt", prompts.prompt, "text to continue");
  command->add_option("--chat", prompts.chat, "message to answer, in the model's chat template");
  command->add_option("--messages", prompts.messages, "conversation to answer: a JSON list of role and content");
  CLI::Option* const prompt_file =
      command->add_option("--prompts", prompts.prompts, "prompt or conversation a line; prints lines of JSON");
  command->add_option("--system", prompts.system, "system message of conversations without one");
  command->add_option("--chat-template", prompts.chat_template, "name of a template, in place of the model's")
      ->check(CLI::IsMember(chat_template_names()));
  command->add_flag("--no-truncate", prompts.no_truncate,
                    "refuse prompts longer than the model's context, and end texts where it is full");
  command->add_flag("!--no-special-tokens", prompts.encoding.add_special_tokens, kNoSpecialTokensHelp);
  constexpr int64_t kMostTokens = int64_t{1} << 40;
  VerbOptions(*command).count("--tokens", request->sampling.tokens, 0, kMostTokens, "how many tokens to add at most");
  command->add_option("--stop", request->stops, "end in front of this text; several times for several")
      ->allow_extra_args(false);
  command->add_option("--temperature", filters.temperature, "0: always the likeliest token")->capture_default_str();
  VerbOptions(*command).count("--top-k", filters.top_k, 0, kMostTokens,
                              "draw from this many likeliest tokens; 0: from all");
  command->add_option("--top-p", filters.top_p, "draw from the likeliest tokens of this probability in all")
      ->capture_default_str();
  command->add_option("--min-p", filters.min_p, "leave out tokens less likely than this times the likeliest")
      ->capture_default_str();
  command->add_option("--repetition-penalty", filters.repetition_penalty, "above 1: tokens repeat less")
      ->capture_default_str();
  command->add_option("--seed", request->sampling.seed, "the same seed gives the same text")->capture_default_str();
  VerbOptions(*command)
      .count("--batch", request->batch, 1, 1024, "prompts of a file that are continued at a time")
      ->needs(prompt_file);
  verbs.push_back({command, "generate runs/quickstart --prompt \"The \"",
                   [request] { return run_reported([&] { generate(*request); }); }});
}

}  // namespace mantissa
