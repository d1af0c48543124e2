#include "core/text/chat_template.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/ranges.h>

#include "core/base/check.h"
#include "core/io/data_kind.h"
#include "core/io/files.h"
#include "core/text/utf8.h"

namespace mantissa {
namespace {

constexpr std::string_view kTurn = "<|im_start|>", kEndOfTurn = "<|im_end|>";
constexpr std::string_view kHeader = "<|start_header_id|>", kEndOfHeader = "<|end_header_id|>";
constexpr std::string_view kEndOfLlamaTurn = "<|eot_id|>";

const std::vector<std::pair<std::string, ChatTemplate>>& named_templates() {
  static const std::vector<std::pair<std::string, ChatTemplate>> kTemplates = {
      {"chatml", {}},
      {"qwen", {.default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."}},
      {"llama3", {.format = ChatFormat::kLlama3, .begin = "<|begin_of_text|>"}}};
  return kTemplates;
}

void require_role(std::string_view role) {
  require<DataError>(role == "system" || role == "user" || role == "assistant",
                     "a message's role must be system, user or assistant, got '{}'", legible(role));
}

// Without white space at both ends, which is that of Python's str.strip().
std::string stripped(const std::string& content) {
  std::string storage;
  std::string_view text = as_utf8(content, storage);
  const auto falls = [](char32_t code) { return is_space(code) || (code >= 0x1C && code <= 0x1F); };
  while (!text.empty() && falls(first_char(text).code)) text.remove_prefix(first_char(text).bytes);
  while (!text.empty() && falls(last_char(text).code)) text.remove_suffix(last_char(text).bytes);
  return std::string(text);
}

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// A template does more than the formats here where it has one of these.
struct Foreign {
  std::string_view marker, kind;
};
constexpr Foreign kForeign[] = {
    {"<think>", "one for models that reason (<think>)"},
    {"Cutting Knowledge Date", "that of Llama 3.1 and later, which writes dates into the system message"},
    {"system_message", "one that chooses the system message by rules of its own"},
    {"[INST]", "that of Llama 2 or Mistral ([INST])"},
    {"<start_of_turn>", "Gemma's (<start_of_turn>)"},
    {"<|assistant|>", "one with <|assistant|>, as Phi and Zephyr have"},
    {"<|channel|>", "that of gpt-oss (<|channel|>)"},
    {"<|start_of_role|>", "Granite's (<|start_of_role|>)"},
};

// "...<|im_start|>system\nYou are ...<|im_end|>...", within one literal of the template: its default system message.
std::string default_system_of(const std::string& where, std::string_view source, const std::string& advice) {
  constexpr std::string_view kSystem = "<|im_start|>system";
  for (size_t at = 0; (at = source.find(kSystem, at)) != std::string_view::npos;) {
    at += kSystem.size();
    std::string_view rest = source.substr(at);
    rest.remove_prefix(rest.starts_with("\\n") ? 2 : rest.starts_with("\n") ? 1 : 0);
    if (rest.starts_with('\'') || rest.starts_with('"')) continue;  // the conversation's message follows
    const std::string_view message = rest.substr(0, rest.find(kEndOfTurn));
    require<DataError>(message.size() < rest.size() && message.find_first_of("'\"{}\\") == std::string::npos,
                       "{}: the default system message of the chat template cannot be read; {}", where, advice);
    return std::string(message);
  }
  return "";
}

// The text of the folder's template and where it is.
struct Source {
  std::string where, text;
};

Source source_in(const std::string& folder) {
  namespace fs = std::filesystem;
  const std::string jinja = (fs::path(folder) / "chat_template.jinja").string();
  if (auto text = text_of_file(jinja)) return {.where = jinja, .text = *std::move(text)};
  const std::string config = (fs::path(folder) / "tokenizer_config.json").string();
  std::error_code ignored;
  if (!fs::exists(config, ignored)) return {};
  const nlohmann::json json = JsonNode::read(config);
  const std::optional<JsonNode> found = JsonNode(json, config).find("chat_template");
  if (!found) return {};
  if (!found->value().is_array()) return {.where = found->where(), .text = found->text()};
  for (size_t i = 0; i < found->array().size(); ++i) {  // several, by name
    const JsonNode entry = found->at(i);
    if (entry.at("name").text() == "default") return {.where = found->where(), .text = entry.at("template").text()};
  }
  return {};
}

}  // namespace

std::vector<ChatMessage> chat_messages(const JsonNode& list) {
  list.expect(!list.array().empty(), "an array of at least one message");
  std::vector<ChatMessage> messages;
  for (size_t i = 0; i < list.array().size(); ++i) {
    const JsonNode entry = list.at(i);
    if (entry.find("tool_calls")) entry.fail("calls of tools (tool_calls) are not supported");
    const JsonNode role = entry.at("role"), content = entry.at("content");
    try {
      require_role(role.text());
    } catch (const DataError& error) {
      role.fail(error.what());
    }
    content.expect(content.value().is_string(), "a string (content in parts is not supported)");
    messages.push_back({.role = role.text(), .content = content.text()});
  }
  return messages;
}

std::string_view ChatTemplate::end_of_turn() const {
  return format == ChatFormat::kChatMl ? kEndOfTurn : kEndOfLlamaTurn;
}

std::vector<ChatPiece> ChatTemplate::render(std::span<const ChatMessage> messages, AnswerHeader answer) const {
  require<DataError>(!messages.empty(), "a conversation must have at least one message");
  const bool is_chatml = format == ChatFormat::kChatMl;
  std::vector<ChatPiece> pieces;
  std::string context = begin;
  const auto add_header = [&](std::string_view role) {
    context += is_chatml ? fmt::format("{}{}\n", kTurn, role) : fmt::format("{}{}{}\n\n", kHeader, role, kEndOfHeader);
  };
  const auto add_turn = [&](std::string_view role, const std::string& content) {
    add_header(role);
    std::string turn = (is_chatml ? content : stripped(content)) + std::string(end_of_turn());
    if (role == "assistant") {
      pieces.push_back({.text = std::exchange(context, {}), .part = ChatPart::kContext});
      pieces.push_back({.text = std::move(turn), .part = ChatPart::kAssistant});
    } else {
      context += turn;
    }
    if (is_chatml) context += "\n";
  };
  if (!default_system.empty() && messages.front().role != "system") add_turn("system", default_system);
  for (const ChatMessage& message : messages) {
    require_role(message.role);
    add_turn(message.role, message.content);
  }
  if (answer == AnswerHeader::kAppend) add_header("assistant");
  if (!context.empty()) pieces.push_back({.text = std::move(context), .part = ChatPart::kContext});
  return pieces;
}

std::vector<std::string> chat_template_names() {
  std::vector<std::string> names;
  for (const auto& [name, found] : named_templates()) names.push_back(name);
  return names;
}

ChatTemplate chat_template(std::string_view name) {
  for (const auto& [known, found] : named_templates()) {
    if (known == name) return found;
  }
  throw ConfigError(
      fmt::format("expected a chat template ({}), got '{}'", fmt::join(chat_template_names(), ", "), name));
}

ChatTemplate find_chat_template(const std::string& folder, std::string_view option) {
  const std::string advice =
      fmt::format("name one with {} ({}), if the model knows it", option, fmt::join(chat_template_names(), ", "));
  const Source source = source_in(folder);
  require<DataError>(!source.text.empty(),
                     "{}: there is no chat template, in chat_template.jinja or in tokenizer_config.json; {}", folder,
                     advice);
  const auto foreign = std::ranges::find_if(kForeign, [&](const Foreign& it) { return has(source.text, it.marker); });
  require<DataError>(foreign == std::end(kForeign), "{}: the chat template is {}; {}", source.where,
                     foreign == std::end(kForeign) ? "" : foreign->kind, advice);
  if (has(source.text, kTurn) && has(source.text, kEndOfTurn) && !has(source.text, "trim")) {
    return {.default_system = default_system_of(source.where, source.text, advice)};
  }
  if (has(source.text, kHeader) && has(source.text, kEndOfHeader) && has(source.text, kEndOfLlamaTurn)) {
    return chat_template("llama3");
  }
  constexpr size_t kShown = 60;
  throw DataError(fmt::format("{}: the chat template, which begins \"{}\", is none that mantissa knows; {}",
                              source.where, legible(std::string_view(source.text).substr(0, kShown)), advice));
}

}  // namespace mantissa
