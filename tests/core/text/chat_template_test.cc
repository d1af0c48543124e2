// Conversations as text, against Hugging Face's apply_chat_template() (make_chat_reference.py).
#include "core/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/text/tokenizer.h"
#include "tests/core/io/temp_folder.h"

namespace mantissa {
namespace {

using ::testing::HasSubstr;

const std::string kChatReference = "tests/core/text/reference/";

std::string whole(const std::vector<ChatPiece>& pieces) {
  std::string text;
  for (const ChatPiece& piece : pieces) text += piece.text;
  return text;
}

std::string config_with(const nlohmann::json& chat_template) {
  return nlohmann::json{{"chat_template", chat_template}}.dump();
}

ChatTemplate found_in(const std::string& name, const std::string& content) {
  const testing::TempFolder folder;
  folder.write(name, content);
  return find_chat_template(folder.path(), "--chat");
}

std::string refusal_of(const std::string& source) {
  return testing::message_of<DataError>([&] { found_in("chat_template.jinja", source); });
}

TEST(ChatTemplate, TextsAreThoseOfTransformers) {
  const auto reference = nlohmann::json::parse(testing::read_file(kChatReference + "chat.json"));
  EXPECT_EQ(reference.size(), 4u);
  for (const auto& [name, expected] : reference.items()) {
    const ChatTemplate chat = found_in("tokenizer_config.json", config_with(expected.at("template")));
    EXPECT_GT(expected.at("cases").size(), 8u);
    for (const auto& conversation : expected.at("cases")) {
      SCOPED_TRACE(name + ": " + conversation.at("messages").dump());
      const std::vector<ChatMessage> messages = chat_messages({conversation.at("messages"), "case"});
      EXPECT_EQ(whole(chat.render(messages)), conversation.at("text"));
      EXPECT_EQ(whole(chat.render(messages, AnswerHeader::kAppend)), conversation.at("text_with_header"));
      if (name == "smollm2") continue;
      const ChatTemplate named = chat_template(name == "qwen2.5" ? "qwen" : name);
      EXPECT_EQ(whole(named.render(messages)), conversation.at("text"));
    }
  }
}

TEST(ChatTemplate, TheAssistantsPiecesAreItsContentAndTheEndOfItsTurn) {
  const std::vector<ChatMessage> messages = {{"system", "S"}, {"user", "U"}, {"assistant", "A"}, {"user", "V"}};
  const std::vector<ChatPiece> chatml = {
      {"<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n", ChatPart::kContext},
      {"A<|im_end|>", ChatPart::kAssistant},
      {"\n<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n", ChatPart::kContext}};
  EXPECT_EQ(chat_template("chatml").render(messages, AnswerHeader::kAppend), chatml);
  EXPECT_EQ(chat_template("chatml").end_of_turn(), "<|im_end|>");

  const std::vector<ChatPiece> llama3 = {{"<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
                                          "<|start_header_id|>assistant<|end_header_id|>\n\n",
                                          ChatPart::kContext},
                                         {"A<|eot_id|>", ChatPart::kAssistant}};
  EXPECT_EQ(chat_template("llama3").render(std::span(messages).subspan(1, 2)), llama3);
  EXPECT_EQ(chat_template("llama3").end_of_turn(), "<|eot_id|>");
}

// So that a mask by pieces hides no token that transformers would read otherwise.
TEST(ChatTemplate, PieceByPieceTokensAreThoseOfTheWholeText) {
  const auto tokenizer = open_tokenizer(kChatReference + "llama3.json");
  const std::vector<ChatMessage> messages = {{"user", "How many layers?"}, {"assistant", "Twelve.\n\nOf 768."}};
  std::vector<int32_t> by_piece, at_once;
  const std::vector<ChatPiece> pieces = chat_template("llama3").render(messages);
  for (const ChatPiece& piece : pieces) tokenizer->encode(piece.text, by_piece);
  tokenizer->encode(whole(pieces), at_once);
  EXPECT_EQ(by_piece, at_once);
}

TEST(ChatTemplate, TheFolderSaysWhichOne) {
  const std::string chatml = "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}";
  const std::string polite = "{{ '<|im_start|>system\\nBe polite.<|im_end|>\\n' }}" + chatml;
  EXPECT_EQ(found_in("chat_template.jinja", chatml).default_system, "");
  EXPECT_EQ(found_in("chat_template.jinja", polite).default_system, "Be polite.");
  const nlohmann::json several = {{{"name", "tool_use"}, {"template", "[INST]"}},
                                  {{"name", "default"}, {"template", polite}}};
  EXPECT_EQ(found_in("tokenizer_config.json", config_with(several)).default_system, "Be polite.");

  const testing::TempFolder both;
  both.write("chat_template.jinja", polite);
  both.write("tokenizer_config.json", config_with(chatml));
  EXPECT_EQ(find_chat_template(both.path(), "--chat").default_system, "Be polite.");
}

TEST(ChatTemplate, AnotherTemplateIsRefusedByName) {
  const std::string chatml = "<|im_start|>' + message.role + '<|im_end|>";
  EXPECT_THAT(refusal_of("{{ '[INST] ' + message.content }}"), HasSubstr("Llama 2 or Mistral"));
  EXPECT_THAT(refusal_of(chatml + "{{ '<think>\\n\\n</think>' }}"), HasSubstr("models that reason"));
  EXPECT_THAT(refusal_of("<|start_header_id|> Cutting Knowledge Date"), HasSubstr("Llama 3.1 and later"));
  EXPECT_THAT(refusal_of(chatml + "{% set system_message = 'x' %}"), HasSubstr("by rules of its own"));
  EXPECT_THAT(refusal_of("{{ '<|im_start|>system\\nIt's me<|im_end|>' }}"), HasSubstr("cannot be read"));
  EXPECT_THAT(refusal_of(chatml + "{{ message.content | trim }}"), HasSubstr("none that mantissa knows"));
  const std::string unknown = refusal_of("{{ 'Human: ' }}");
  EXPECT_THAT(unknown, HasSubstr("chat_template.jinja: the chat template, which begins \"{{ 'Human: ' }}\""));
  EXPECT_THAT(unknown, HasSubstr("name one with --chat (chatml, qwen, llama3)"));

  const auto none = [](const std::string& config) {
    return testing::message_of<DataError>([&] { found_in("tokenizer_config.json", config); });
  };
  EXPECT_THAT(none("{}"), HasSubstr("there is no chat template"));
  EXPECT_THAT(none(R"({"chat_template": 3})"), HasSubstr("chat_template: expected a string, got 3"));
  EXPECT_THAT(none(R"({"chat_template": []})"), HasSubstr("there is no chat template"));
  EXPECT_THAT(testing::message_of<ConfigError>([] { chat_template("vicuna"); }), HasSubstr("got 'vicuna'"));
}

TEST(ChatTemplate, AMessageThatCannotBeWrittenIsRefused) {
  const auto refusal = [](const char* messages) {
    const nlohmann::json json = nlohmann::json::parse(messages);
    return testing::message_of<DataError>([&] { chat_messages({json, "FILE: messages"}); });
  };
  EXPECT_THAT(refusal("{}"), HasSubstr("FILE: messages: expected an array"));
  EXPECT_THAT(refusal("[]"), HasSubstr("at least one message"));
  EXPECT_THAT(refusal(R"([{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}])"),
              HasSubstr("FILE: messages[1].role: a message's role must be system, user or assistant, got 'tool'"));
  EXPECT_THAT(refusal(R"([{"role": "user"}])"), HasSubstr("FILE: messages[0]: the key 'content' is missing"));
  EXPECT_THAT(refusal(R"([{"role": "user", "content": [{"text": "a"}]}])"), HasSubstr("content in parts"));
  EXPECT_THAT(refusal(R"([{"role": "assistant", "content": "", "tool_calls": []}])"), HasSubstr("tool_calls"));
  const std::vector<ChatMessage> tool = {{"tool", "x"}};
  EXPECT_THAT(testing::message_of<DataError>([&] { chat_template("chatml").render(tool); }), HasSubstr("'tool'"));
  EXPECT_THAT(testing::message_of<DataError>([&] { chat_template("chatml").render({}); }), HasSubstr("at least one"));
}

}  // namespace
}  // namespace mantissa
