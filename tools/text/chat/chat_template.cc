#include "tools/text/chat/chat_template.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/ranges.h>

#include "core/base/check.h"
#include "core/base/wrapped_text.h"
#include "core/io/files.h"
#include "tools/text/chat/jinja.h"
#include "tools/text/tokenizer/utf8.h"

namespace mantissa {
namespace {

// How a turn is written, by ChatFormat.
struct Turn {
  std::string_view name, begin, end_of_header, end, behind;
  bool strips_content;
};
constexpr Turn kTurns[] = {{"ChatML", "<|im_start|>", "\n", "<|im_end|>", "\n", false},
                           {"Llama 3", "<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>", "", true}};

const Turn& turn_of(ChatFormat format) { return kTurns[static_cast<size_t>(format)]; }

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

std::string stripped(const std::string& content) {
  std::string storage;
  return std::string(without_leading_space(without_trailing_space(as_utf8(content, storage))));
}

std::string header(ChatFormat format, std::string_view role) {
  return fmt::format("{}{}{}", turn_of(format).begin, role, turn_of(format).end_of_header);
}

// Names for templates in other formats, by a part of their source.
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

// Stands for a content, with white space around it: some templates strip it.
constexpr char kContentMark = '\x01';

std::string shown(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == kContentMark ? "content " : std::string(1, c);
  return excerpt(out);
}

ChatMessage probe(size_t index, std::string_view role) {
  return {.role = std::string(role), .content = fmt::format(" {}{} ", kContentMark, index)};
}

template <typename Part>
bool has(const std::string& text, Part part) {
  return text.find(part) != std::string::npos;
}

std::string joined(const std::vector<ChatPiece>& pieces) {
  std::string text;
  for (const ChatPiece& piece : pieces) text += piece.text;
  return text;
}

// The format, the text in front and the default system message that `source` writes; the rest is not compared yet.
ChatTemplate candidate(const JinjaTemplate& source) {
  const ChatMessage user = probe(0, "user"), system = probe(0, "system");
  const std::string text = source.text({&user, 1}, AnswerHeader::kLeaveOut);
  const std::string with_system = source.text({&system, 1}, AnswerHeader::kLeaveOut);
  for (const ChatFormat format : {ChatFormat::kChatMl, ChatFormat::kLlama3}) {
    const std::string begin_of_system = header(format, "system");
    const size_t begin = with_system.find(begin_of_system);
    if (begin == std::string::npos) continue;
    ChatTemplate found{.format = format, .begin = with_system.substr(0, begin)};
    if (text.find(begin_of_system) == begin) {
      const size_t message = begin + begin_of_system.size();
      found.default_system = text.substr(message, text.find(found.end_of_turn(), message) - message);
    }
    return found;
  }
  throw DataError(fmt::format("it writes \"{}\" for a message", shown(text)));
}

// The template that writes the text of `source` for every conversation. DataError if there is none.
//
// A JinjaTemplate may treat the first three messages and the last one apart, and each role; it treats all others alike.
// So all sequences of roles up to 5 messages are compared. Among four messages there are no others, among five there is
// one. If the texts are equal for both, a further message adds the same to both texts.
ChatTemplate recognised(const JinjaTemplate& source) {
  constexpr size_t kMostMessages = 5;
  constexpr std::string_view kRoles[] = {"user", "assistant", "system"};
  const ChatTemplate found = candidate(source);
  for (size_t count = 1, sequences = 3; count <= kMostMessages; ++count, sequences *= 3) {
    for (size_t sequence = 0; sequence < 2 * sequences; ++sequence) {
      const AnswerHeader answer = sequence % 2 == 0 ? AnswerHeader::kLeaveOut : AnswerHeader::kAppend;
      std::vector<ChatMessage> messages;
      for (size_t rest = sequence / 2; messages.size() < count; rest /= 3) {
        messages.push_back(probe(messages.size(), kRoles[rest % 3]));
      }
      const std::string theirs = source.text(messages, answer), ours = joined(found.render(messages, answer));
      if (theirs == ours) continue;
      constexpr std::ptrdiff_t kBefore = 20;  // bytes that are equal
      const auto at = std::max<std::ptrdiff_t>(0, std::ranges::mismatch(theirs, ours).in1 - theirs.begin() - kBefore);
      throw DataError(fmt::format("it writes \"{}\" where {} has \"{}\"", shown(theirs.substr(at)),
                                  turn_of(found.format).name, shown(ours.substr(at))));
    }
  }
  return found;
}

// The text of the folder's template, where it is, and the special tokens that the folder names.
struct Source {
  std::string where, text;
  SpecialTokens special_tokens{};
};

Source source_in(const std::string& folder) {
  namespace fs = std::filesystem;
  Source source;
  const std::string jinja = (fs::path(folder) / "chat_template.jinja").string();
  if (auto text = text_of_file(jinja)) source = {.where = jinja, .text = *std::move(text)};
  const std::string config = (fs::path(folder) / "tokenizer_config.json").string();
  if (!file_exists(config)) return source;
  const nlohmann::json json = JsonNode::read(config);
  const JsonNode root(json, config);
  for (const char* name : {"bos_token", "eos_token"}) {
    if (!root.object().contains(name)) continue;
    const std::optional<JsonNode> token = root.find(name);
    if (!token) {
      source.special_tokens[name] = std::nullopt;
    } else {
      source.special_tokens[name] = token->value().is_object() ? token->at("content").text() : token->text();
    }
  }
  const std::optional<JsonNode> found = root.find("chat_template");
  if (!found || !source.text.empty()) return source;
  source.where = found->where();
  if (!found->value().is_array()) source.text = found->text();
  for (size_t i = 0; found->value().is_array() && i < found->array().size(); ++i) {  // several, by name
    const JsonNode entry = found->at(i);
    if (entry.at("name").text() == "default") source.text = entry.at("template").text();
  }
  return source;
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

std::string_view ChatTemplate::end_of_turn() const { return turn_of(format).end; }

std::string ChatTemplate::jinja() const {
  const Turn& turn = turn_of(format);
  const auto quoted = [](std::string_view text) { return nlohmann::json(text).dump(); };  // as Jinja reads it
  const std::string end = fmt::format("{}{}", turn.end, turn.behind), assistant = header(format, "assistant");
  std::string source = begin.empty() ? "" : fmt::format("{{{{ {} }}}}", quoted(begin));
  if (!default_system.empty()) {
    source += fmt::format("{{% if messages[0]['role'] != 'system' %}}{{{{ {} }}}}{{% endif %}}",
                          quoted(header(format, "system") + default_system + end));
  }
  return source + fmt::format(
                      "{{% for message in messages %}}{{{{ {} + message['role'] + {} + message['content']{} + {} "
                      "}}}}{{% endfor %}}{{% if add_generation_prompt %}}{{{{ {} }}}}{{% endif %}}",
                      quoted(turn.begin), quoted(turn.end_of_header), turn.strips_content ? " | trim" : "", quoted(end),
                      quoted(assistant));
}

std::vector<ChatPiece> ChatTemplate::render(std::span<const ChatMessage> messages, AnswerHeader answer) const {
  require<DataError>(!messages.empty(), "a conversation must have at least one message");
  const Turn& written = turn_of(format);
  std::vector<ChatPiece> pieces;
  std::string context = begin;
  const auto add_turn = [&](std::string_view role, const std::string& content) {
    context += header(format, role);
    std::string turn = (written.strips_content ? stripped(content) : content) + std::string(written.end);
    if (role == "assistant") {
      pieces.push_back({.text = std::exchange(context, {}), .part = ChatPart::kContext});
      pieces.push_back({.text = std::move(turn), .part = ChatPart::kAssistant});
    } else {
      context += turn;
    }
    context += written.behind;
  };
  if (!default_system.empty() && messages.front().role != "system") add_turn("system", default_system);
  for (const ChatMessage& message : messages) {
    require_role(message.role);
    add_turn(message.role, message.content);
  }
  if (answer == AnswerHeader::kAppend) context += header(format, "assistant");
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
  try {
    require<DataError>(!has(source.text, kContentMark), "it has the character U+0001");
    return recognised(JinjaTemplate(source.text, source.special_tokens));
  } catch (const DataError& reason) {
    const auto foreign = std::ranges::find_if(kForeign, [&](const Foreign& it) { return has(source.text, it.marker); });
    const std::string kind = foreign == std::end(kForeign) ? fmt::format("none that mantissa knows: {}", reason.what())
                                                           : std::string(foreign->kind);
    throw DataError(fmt::format("{}: the chat template is {}; {}", source.where, kind, advice));
  }
}

}  // namespace mantissa
