// Conversations as text, against Hugging Face's apply_chat_template() (make_chat_reference.py).
#include "tools/text/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/io/temp_folder.h"
#include "tools/text/tokenizer/tokenizer.h"

namespace mantissa {
namespace {

using ::testing::HasSubstr;

const std::string kChatReference = "tests/tools/text/reference/";

std::string whole(const std::vector<ChatPiece>& pieces) {
  std::string text;
  for (const ChatPiece& piece : pieces) text += piece.text;
  return text;
}

ChatTemplate found_in(const std::string& name, const std::string& content) {
  const testing::TempFolder folder;
  folder.write(name, content);
  return find_chat_template(folder.path(), "--chat");
}

nlohmann::json chat_reference() { return nlohmann::json::parse(testing::read_file(kChatReference + "chat.json")); }

// Compares all texts of the reference with those of `chat`.
void expect_texts(const ChatTemplate& chat, const nlohmann::json& conversations, const nlohmann::json& texts) {
  ASSERT_EQ(texts.size(), conversations.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    SCOPED_TRACE(conversations[i].dump());
    const std::vector<ChatMessage> messages = chat_messages({conversations[i], "case"});
    EXPECT_EQ(whole(chat.render(messages)), texts[i].at(0));
    EXPECT_EQ(whole(chat.render(messages, AnswerHeader::kAppend)), texts[i].at(1));
  }
}

std::string refusal_of(const std::string& source) {
  return testing::message_of<DataError>([&] { found_in("chat_template.jinja", source); });
}

TEST(ChatTemplate, TextsAreThoseOfTransformers) {
  const nlohmann::json reference = chat_reference();
  EXPECT_EQ(reference.at("templates").size(), 11u);
  EXPECT_EQ(reference.at("conversations").size(), 10u);
  for (const auto& [name, expected] : reference.at("templates").items()) {
    SCOPED_TRACE(name);
    const ChatTemplate chat = found_in("tokenizer_config.json", expected.dump());
    expect_texts(chat, reference.at("conversations"), expected.at("texts"));
  }
  const std::pair<const char*, const char*> named[] = {{"chatml", "smollm"}, {"qwen", "qwen2.5"}, {"llama3", "llama3"}};
  for (const auto& [name, model] : named) {
    SCOPED_TRACE(name);
    expect_texts(chat_template(name), reference.at("conversations"), reference["templates"][model].at("texts"));
  }
}

// No template is written otherwise than transformers writes it.
TEST(ChatTemplate, AVariantIsWrittenAlikeOrRefused) {
  const nlohmann::json reference = chat_reference();
  std::vector<std::string> written;
  for (const auto& [name, expected] : reference.at("variants").items()) {
    SCOPED_TRACE(name);
    try {
      const ChatTemplate chat = found_in("tokenizer_config.json", expected.dump());
      written.push_back(name);
      expect_texts(chat, reference.at("conversations"), expected.at("texts"));
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr("is none that mantissa knows: it "));
    }
  }
  EXPECT_THAT(written,
              ::testing::ElementsAre("bos_token", "llama3 without begin", "set sys", "text in front", "text sys"));
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

// Loss masks go by pieces, so pieces must give the tokens that transformers makes of the whole text.
TEST(ChatTemplate, PieceByPieceTokensAreThoseOfTheWholeText) {
  const auto tokenizer = open_tokenizer(kChatReference + "llama3.json");
  const std::vector<ChatMessage> messages = {{"user", "How many layers?"}, {"assistant", "Twelve.\n\nOf 768."}};
  std::vector<int32_t> by_piece, at_once;
  const std::vector<ChatPiece> pieces = chat_template("llama3").render(messages);
  for (const ChatPiece& piece : pieces) tokenizer->encode(piece.text, by_piece);
  tokenizer->encode(whole(pieces), at_once);
  EXPECT_EQ(by_piece, at_once);
}

const std::string kChatMl =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

TEST(ChatTemplate, TheFolderSaysWhichOne) {
  const std::string polite =
      "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\nBe polite.<|im_end|>\\n' }}{% endif %}" + kChatMl;
  EXPECT_EQ(found_in("chat_template.jinja", kChatMl).default_system, "");
  EXPECT_EQ(found_in("chat_template.jinja", polite).default_system, "Be polite.");
  const nlohmann::json several = {{{"name", "tool_use"}, {"template", "[INST]"}},
                                  {{"name", "default"}, {"template", polite}}};
  const std::string config = nlohmann::json{{"chat_template", several}}.dump();
  EXPECT_EQ(found_in("tokenizer_config.json", config).default_system, "Be polite.");

  const testing::TempFolder both;
  both.write("chat_template.jinja", "{{ bos_token }}" + polite);
  nlohmann::json tokens = {{"chat_template", kChatMl}, {"bos_token", {{"content", "<s>"}}}};
  both.write("tokenizer_config.json", tokens.dump());
  EXPECT_EQ(find_chat_template(both.path(), "--chat").default_system, "Be polite.");
  EXPECT_EQ(find_chat_template(both.path(), "--chat").begin, "<s>");
  tokens["bos_token"] = nullptr;  // the tokenizer has none
  both.write("tokenizer_config.json", tokens.dump());
  EXPECT_EQ(find_chat_template(both.path(), "--chat").begin, "");
  EXPECT_THAT(refusal_of("{{ bos_token }}" + polite), HasSubstr("it has \"{{ bos_token }}\""));  // no file says
}

TEST(ChatTemplate, IsWrittenInJinjaAndReadBack) {
  std::vector<ChatTemplate> templates = {{.begin = "<s>\n", .default_system = "It's \"C:\\new\",\nh\u00e9."}};
  for (const std::string& name : chat_template_names()) templates.push_back(chat_template(name));
  for (const ChatTemplate& written : templates) {
    const ChatTemplate found = found_in("chat_template.jinja", written.jinja());
    EXPECT_EQ(found.jinja(), written.jinja());
    EXPECT_EQ(found.begin, written.begin);
    EXPECT_EQ(found.default_system, written.default_system);
    EXPECT_EQ(found.end_of_turn(), written.end_of_turn());
  }
}

TEST(ChatTemplate, AnotherTemplateIsRefusedByName) {
  EXPECT_THAT(refusal_of("{{ '[INST] ' + message.content }}"), HasSubstr("Llama 2 or Mistral"));
  EXPECT_THAT(refusal_of(kChatMl + "{{ '<think>\\n\\n</think>' }}"), HasSubstr("models that reason"));
  EXPECT_THAT(refusal_of("<|start_header_id|> Cutting Knowledge Date"), HasSubstr("Llama 3.1 and later"));
  EXPECT_THAT(refusal_of(kChatMl + "{{ system_message }}"), HasSubstr("by rules of its own"));
  const std::string unknown = refusal_of("{{ 'Human: ' }}");
  EXPECT_THAT(unknown, HasSubstr("chat_template.jinja: the chat template is none that mantissa knows: it writes "
                                 "\"Human: \" for a message; name one with --chat (chatml, qwen, llama3)"));
}

TEST(ChatTemplate, ARefusalSaysWhatIsUnknown) {
  const auto changed = [](const std::string& part, const std::string& by) {
    std::string source = kChatMl;
    return refusal_of(source.replace(source.find(part), part.size(), by));
  };
  EXPECT_THAT(changed("message['content']", "message['content'] | upper"),
              HasSubstr(R"(it has "{{ '<|im_start|>' + message['role'] + '\n' + message['conten..."; name)"));
  EXPECT_THAT(changed("\\n' }}{% endfor", "' }}{% endfor"),
              HasSubstr(R"(it writes ">user\n content 0 <|im_end|>" where ChatML has)"));
  for (const char* part : {"{% macro x() %}",
                           "{{ x }}",
                           "{% set x %}",
                           "{% set loop = 1 %}",
                           "{{ messages }}",
                           "{{ 2 }}",
                           "{{ '\\x41' }}",
                           "{% if messages[0].content %}",
                           "{% if messages[0].content == '' %}",
                           "{% if messages %}",
                           "{% for m in tools %}",
                           "{% endif %}",
                           "{% else %}",
                           "{{ messages[1] }}",
                           "{{ messages[0].name }}",
                           "{{ ('a' }}",
                           "{{ 'a' 1 }}",
                           "{{ 'a' - 'b' }}",
                           "{{ true == 1 }}",
                           "{{ not }}",
                           "{{}}",
                           "{% %}",
                           "{% raw %}"}) {
    EXPECT_THAT(refusal_of(part + kChatMl), HasSubstr("it has \"" + std::string(part))) << part;
  }
  for (const char* part : {"{{ 'a", "{# a", "{{ $ }}", "{{ ] }}", "{{ (} }}", "{{ 'a\\"}) {
    EXPECT_THAT(refusal_of(kChatMl + part), HasSubstr("it has \"" + std::string(part))) << part;
  }
  EXPECT_THAT(refusal_of(kChatMl + "\x01"), HasSubstr("U+0001"));
  EXPECT_THAT(refusal_of(kChatMl + "\xff"), HasSubstr("none that mantissa knows"));
}

// Templates come from elsewhere: none may take much memory, time or stack.
TEST(ChatTemplate, ATemplateThatGrowsIsRefused) {
  const auto repeated = [](const std::string& text, size_t times) {
    std::string out;
    for (size_t i = 0; i < times; ++i) out += text;
    return out;
  };
  EXPECT_THAT(refusal_of("{% set a = 'a' %}" + repeated("{% set a = a + a %}", 100)), HasSubstr("{% set a = a + a %}"));
  EXPECT_THAT(refusal_of(repeated("{% if true %}", 4000)), HasSubstr("{% if true %}"));
  EXPECT_THAT(refusal_of("{{ " + repeated("(", 30000)), HasSubstr("it has"));
  EXPECT_THAT(refusal_of("{{ " + repeated("(", 30000) + repeated(")", 30000) + "}}"), HasSubstr("it has"));
  EXPECT_THAT(refusal_of("{{ " + repeated("not ", 15000) + "a }}"), HasSubstr("it has"));
  EXPECT_THAT(refusal_of(repeated("a", 1 << 20)), HasSubstr("it has"));
}

TEST(ChatTemplate, AFolderWithoutATemplateIsRefused) {
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
