#include "tools/model/generate/prompts.h"

#include <string_view>

#include "core/base/check.h"
#include "core/io/files.h"
#include "tools/config/data_paths.h"
#include "tools/text/chat/chat_template.h"

namespace mantissa {
namespace {

class PromptReader {
 public:
  PromptReader(const PromptChoice& choice, const std::string& model, const TextCodec& codec)
      : choice_(choice), model_(model), codec_(codec) {}

  void add_text(const std::string& text) { list_.prompts.push_back({.text = text, .tokens = codec_.encode(text)}); }

  bool has_chats() const { return template_.has_value(); }
  void add_chat(std::vector<ChatMessage> messages) {
    require<ConfigError>(codec_.is_text(), "{}: the model has no tokenizer: it reads no conversations", model_);
    if (choice_.system && (messages.empty() || messages.front().role != "system")) {
      messages.insert(messages.begin(), {.role = "system", .content = *choice_.system});
    }
    if (!template_) find_template();
    Prompt prompt{.text = {}, .tokens = {}, .is_chat = true};
    for (const ChatPiece& piece : template_->render(messages, AnswerHeader::kAppend)) {
      prompt.text += piece.text;
      const std::vector<int32_t> tokens = codec_.encode(piece.text);
      prompt.tokens.insert(prompt.tokens.end(), tokens.begin(), tokens.end());
    }
    list_.prompts.push_back(std::move(prompt));
  }

  void add_line(const std::string& where, std::string_view line) {
    nlohmann::json json;
    try {
      json = nlohmann::json::parse(line);
    } catch (const nlohmann::json::exception&) {
      throw DataError(
          fmt::format("{}: not valid JSON; expected {{\"prompt\": TEXT}} or {{\"messages\": [...]}}", where));
    }
    const JsonNode node(json, where);
    if (const auto messages = node.find("messages")) return add_chat(chat_messages(*messages));
    add_text(node.at("prompt").text());
  }

  void add_file(const std::string& path) {
    const std::optional<std::string> content = text_of_file(path);
    require<DataError>(content.has_value(), "{}: cannot be read", path);
    for_each_line(*content, [&](size_t number, std::string_view line) {
      if (!path.ends_with(".jsonl")) return add_text(std::string(line));
      add_line(fmt::format("{}:{}", path, number), line);
    });
    require<DataError>(!list_.prompts.empty(), "{}: the file has no prompt", path);
  }

  PromptList take() { return std::move(list_); }

 private:
  void find_template() {
    const std::string folder = carried_folder(model_);
    template_ = choice_.chat_template.empty() ? find_chat_template(folder.empty() ? model_ : folder, "--chat-template")
                                              : mantissa::chat_template(choice_.chat_template);
    list_.end_of_turn = template_->end_of_turn();
  }

  const PromptChoice& choice_;
  const std::string& model_;
  const TextCodec& codec_;
  std::optional<ChatTemplate> template_;
  PromptList list_;
};

}  // namespace

PromptList read_prompts(const PromptChoice& choice, const std::string& model, const TextCodec& codec) {
  const int given = static_cast<int>(choice.prompt.has_value()) + static_cast<int>(choice.chat.has_value()) +
                    static_cast<int>(choice.messages.has_value()) + static_cast<int>(choice.prompts.has_value());
  require<ConfigError>(given == 1, "give one of --prompt, --chat, --messages and --prompts, got {} of them", given);
  PromptReader reader(choice, model, codec);
  if (choice.prompt) reader.add_text(*choice.prompt);
  if (choice.chat) reader.add_chat({{.role = "user", .content = *choice.chat}});
  if (choice.messages) {
    const nlohmann::json json = JsonNode::read(*choice.messages);
    reader.add_chat(chat_messages({json, *choice.messages}));
  }
  if (choice.prompts) reader.add_file(*choice.prompts);
  require<ConfigError>(reader.has_chats() || (!choice.system && choice.chat_template.empty()),
                       "--system and --chat-template are for conversations: {}",
                       choice.prompts ? *choice.prompts + " has none" : "give --chat, --messages or --prompts");
  return reader.take();
}

}  // namespace mantissa
