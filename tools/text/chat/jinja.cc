// Rules: https://jinja.palletsprojects.com/templates/, for precedence the parser of Jinja 3.1.
#include "tools/text/chat/jinja.h"

#include <algorithm>
#include <utility>

#include "tools/text/tokenizer/utf8.h"

namespace mantissa {
namespace jinja {
namespace {

using TokenKind = JinjaToken::Kind;
using TagKind = JinjaTag::Kind;

// Limits of what a template may cost. Those of models stay below a tenth of each.
constexpr size_t kLongestSource = 1 << 16, kLongestText = 1 << 16, kMostVariables = 32;
constexpr int kDeepest = 100;

struct Value {
  enum class Kind : uint8_t { kUndefined, kNone, kBool, kNumber, kText, kMessage, kMessages, kLoop };
  // Texts that hold a content are no condition, and only a content as a whole loses its white space.
  enum class Holds : uint8_t { kKnown, kContent, kMixed };
  Kind kind = Kind::kUndefined;
  size_t number = 0;  // of a bool: 0 or 1; a message: its index; messages: the index of the first
  std::string text{};
  Holds holds = Holds::kKnown;
};
using Kind = Value::Kind;
using Holds = Value::Holds;
using Variables = std::map<std::string, Value, std::less<>>;

Value truth_value(bool is_true) { return {.kind = Kind::kBool, .number = is_true ? 1u : 0u}; }
Value text_value(std::string text, Holds holds = Holds::kKnown) {
  return {.kind = Kind::kText, .text = std::move(text), .holds = holds};
}

class Evaluation {
 public:
  Evaluation(const std::vector<JinjaTag>& tags, std::span<const ChatMessage> messages, Variables variables)
      : tags_(tags), messages_(messages), variables_(std::move(variables)) {}

  std::string text() {
    const size_t end = run(0);
    if (end < tags_.size()) refuse_jinja(tags_[end].source);
    return std::move(text_);
  }

 private:
  // Bounds recursion.
  struct Level {
    int& depth;
    ~Level() { --depth; }
  };
  Level deeper() {
    need(++depth_ <= kDeepest);
    return {depth_};
  }

  [[noreturn]] void refuse() const { refuse_jinja(tag_->source); }
  void need(bool is_known) const {
    if (!is_known) refuse();
  }

  // ---- statements ----

  std::string_view word(size_t at) const {
    const JinjaTag& tag = tags_[at];
    return tag.kind != TagKind::kStatement || tag.tokens.empty() ? "" : std::string_view(tag.tokens[0].text);
  }
  static bool is_branch(std::string_view word) { return word == "elif" || word == "else"; }
  static bool is_end(std::string_view word) { return word == "endif" || word == "endfor"; }

  // Runs up to the next tag of a statement begun before. Returns its index, or the number of tags.
  size_t run(size_t at) {
    while (at < tags_.size()) {
      tag_ = &tags_[at];
      next_ = 0;
      const Level level = deeper();
      if (tag_->kind == TagKind::kText) {
        add(tag_->source);
      } else if (tag_->kind == TagKind::kOutput) {
        const Value value = whole_expression();
        need(value.kind == Kind::kText || value.kind == Kind::kUndefined);
        add(value.text);
      } else if (word(at) == "if") {
        at = run_if(at);
        continue;
      } else if (word(at) == "for") {
        at = run_for(at);
        continue;
      } else if (word(at) == "set") {
        set();
      } else {
        need(is_branch(word(at)) || is_end(word(at)));
        return at;
      }
      ++at;
    }
    return at;
  }

  // The same without running it.
  size_t skip(size_t at) const {
    for (size_t depth = 0; at < tags_.size(); ++at) {
      if (word(at) == "if" || word(at) == "for") ++depth;
      if (depth == 0 && (is_branch(word(at)) || is_end(word(at)))) break;
      if (is_end(word(at))) --depth;
    }
    return at;
  }

  size_t run_if(size_t at) {
    for (bool is_done = false; word(at) != "endif";) {
      tag_ = &tags_[at];
      next_ = 1;
      need(word(at) == "if" || is_branch(word(at)));
      const bool runs = !is_done && (word(at) == "else" || truth(whole_expression()));
      const JinjaTag* begun = tag_;
      at = runs ? run(at + 1) : skip(at + 1);
      if (at == tags_.size()) refuse_jinja(begun->source);
      is_done |= runs;
    }
    return at + 1;
  }

  // {% for NAME in MESSAGES %}, and none within another. Variables that are set inside end with each message.
  size_t run_for(size_t at) {
    next_ = 1;
    const std::string name = new_name();
    need(accept("in"));
    const Value list = whole_expression();
    need(list.kind == Kind::kMessages && !loop_);
    const JinjaTag* begun = tag_;
    const Variables outside = variables_;
    size_t end = skip(at + 1);
    loop_first_ = list.number;
    for (loop_ = list.number; *loop_ < messages_.size(); ++*loop_) {
      variables_[name] = {.kind = Kind::kMessage, .number = *loop_};
      variables_["loop"] = {.kind = Kind::kLoop};
      end = run(at + 1);
      variables_ = outside;
    }
    loop_.reset();
    if (end == tags_.size() || word(end) != "endfor") refuse_jinja(begun->source);
    return end + 1;
  }

  void set() {
    next_ = 1;
    const std::string name = new_name();
    need(accept("="));
    variables_[name] = whole_expression();
    need(variables_.size() <= kMostVariables);
  }

  std::string new_name() {
    const JinjaToken* token = take();
    constexpr std::string_view kNoNames[] = {"loop", "true", "True", "false", "False", "none", "None", "not", "self"};
    need(token && token->kind == TokenKind::kName && std::ranges::find(kNoNames, token->text) == std::end(kNoNames));
    return token->text;
  }

  void add(std::string_view text) {
    need(text_.size() + text.size() <= kLongestText);
    text_ += text;
  }

  // ---- expressions, by precedence ----

  const JinjaToken* peek() const { return next_ < tag_->tokens.size() ? &tag_->tokens[next_] : nullptr; }
  const JinjaToken* take() {
    const JinjaToken* token = peek();
    ++next_;
    return token;
  }
  bool accept(std::string_view text) {
    const bool is_next = peek() && peek()->kind != TokenKind::kLiteral && peek()->text == text;
    next_ += is_next ? 1 : 0;
    return is_next;
  }

  bool truth(const Value& value) const {
    switch (value.kind) {
      case Kind::kUndefined:
      case Kind::kNone:
        return false;
      case Kind::kBool:
      case Kind::kNumber:
        return value.number != 0;
      case Kind::kText:
        need(value.holds == Holds::kKnown);
        return !value.text.empty();
      default:
        refuse();
    }
  }

  Value whole_expression() {
    Value value = alternatives();
    need(peek() == nullptr);
    return value;
  }

  Value alternatives() {
    const Level level = deeper();
    Value value = conjunction();
    while (accept("or")) {
      Value right = conjunction();
      if (!truth(value)) value = std::move(right);
    }
    return value;
  }

  Value conjunction() {
    Value value = negation();
    while (accept("and")) {
      Value right = negation();
      if (truth(value)) value = std::move(right);
    }
    return value;
  }

  Value negation() {
    const Level level = deeper();
    return accept("not") ? truth_value(!truth(negation())) : comparison();
  }

  Value comparison() {
    const Value left = sum();
    const bool is_equality = accept("==");
    if (!is_equality && !accept("!=")) return left;
    const Value right = sum();
    return truth_value(equal(left, right) == is_equality);
  }

  // A content is unlike all that is no text.
  bool equal(const Value& left, const Value& right) const {
    need(std::max(left.kind, right.kind) <= Kind::kText);
    if (left.kind != right.kind) {  // in Python, True == 1
      need(!(std::min(left.kind, right.kind) == Kind::kBool && std::max(left.kind, right.kind) == Kind::kNumber));
      return false;
    }
    need(left.holds == Holds::kKnown && right.holds == Holds::kKnown);
    return left.number == right.number && left.text == right.text;
  }

  Value sum() {
    Value value = operand();
    while (accept("+") || accept("~")) {
      const Value right = operand();
      need(value.kind == Kind::kText && right.kind == Kind::kText);
      need(value.text.size() + right.text.size() <= kLongestText);
      value.text += right.text;
      if (value.holds != Holds::kKnown || right.holds != Holds::kKnown) value.holds = Holds::kMixed;
    }
    return value;
  }

  // A primary value, what is taken of it, then its filters and tests.
  Value operand() {
    Value value = primary();
    while (true) {
      if (accept(".")) {
        const JinjaToken* name = take();
        need(name && name->kind == TokenKind::kName);
        value = attribute(value, name->text);
      } else if (accept("[")) {
        value = subscript(value);
        need(accept("]"));
      } else {
        break;
      }
    }
    while (true) {
      if (accept("|")) {
        need(accept("trim"));
        value = trimmed(std::move(value));
      } else if (accept("is")) {
        const bool is_negated = accept("not");
        value = truth_value(test(value) != is_negated);
      } else {
        return value;
      }
    }
  }

  Value primary() {
    const JinjaToken* token = take();
    need(token != nullptr);
    if (token->kind == TokenKind::kLiteral) {
      Value value = text_value(token->text);
      while (peek() && peek()->kind == TokenKind::kLiteral) value.text += take()->text;
      return value;
    }
    if (token->kind == TokenKind::kSign) {
      need(token->text == "(");
      Value value = alternatives();
      need(accept(")"));
      return value;
    }
    if (token->text == "true" || token->text == "True") return truth_value(true);
    if (token->text == "false" || token->text == "False") return truth_value(false);
    if (token->text == "none" || token->text == "None") return {.kind = Kind::kNone};
    // Larger numbers could distinguish a message in the middle from the others.
    if (token->text == "0" || token->text == "1")
      return {.kind = Kind::kNumber, .number = token->text == "1" ? 1u : 0u};
    const auto variable = variables_.find(token->text);
    need(variable != variables_.end());
    return variable->second;
  }

  Value attribute(const Value& value, std::string_view name) const {
    if (value.kind == Kind::kMessage) {
      if (name == "role") return text_value(messages_[value.number].role);
      if (name == "content") return text_value(messages_[value.number].content, Holds::kContent);
      need(name == "tool_calls");
      return {};
    }
    need(value.kind == Kind::kLoop && loop_);
    if (name == "first") return truth_value(*loop_ == loop_first_);
    if (name == "last") return truth_value(*loop_ + 1 == messages_.size());
    need(name == "index" || name == "index0");
    return {.kind = Kind::kNumber, .number = *loop_ - loop_first_ + (name == "index" ? 1 : 0)};
  }

  // ["key"], [0] and [1:].
  Value subscript(const Value& value) {
    const JinjaToken* key = take();
    need(key != nullptr);
    if (key->kind == TokenKind::kLiteral) return attribute(value, key->text);
    need(value.kind == Kind::kMessages);
    if (key->text == "0" && value.number < messages_.size()) return {.kind = Kind::kMessage, .number = value.number};
    need(key->text == "1" && accept(":") && value.number == 0);
    return {.kind = Kind::kMessages, .number = 1};
  }

  Value trimmed(Value value) const {
    need(value.kind == Kind::kText && value.holds != Holds::kMixed);
    value.text = without_leading_space(without_trailing_space(value.text));
    return value;
  }

  bool test(const Value& value) {
    if (accept("defined")) return value.kind != Kind::kUndefined;
    need(accept("string"));
    return value.kind == Kind::kText;
  }

  const std::vector<JinjaTag>& tags_;
  std::span<const ChatMessage> messages_;
  Variables variables_;
  const JinjaTag* tag_ = nullptr;  // that is evaluated, and its next token
  size_t next_ = 0;
  std::optional<size_t> loop_;  // the message that a loop is at
  size_t loop_first_ = 0;
  int depth_ = 0;
  std::string text_;
};

}  // namespace
}  // namespace jinja

JinjaTemplate::JinjaTemplate(std::string_view source, SpecialTokens special_tokens)
    : special_tokens_(std::move(special_tokens)) {
  std::string storage;
  if (source.size() > jinja::kLongestSource || as_utf8(source, storage) != source) refuse_jinja(source);
  tags_ = jinja_tags(source);
  for (const JinjaTag& tag : tags_) {
    const std::string_view word = tag.tokens.empty() ? "" : std::string_view(tag.tokens[0].text);
    const bool is_alone = word == "else" || word == "endif" || word == "endfor";
    if (tag.kind == JinjaTag::Kind::kStatement && is_alone && tag.tokens.size() > 1) refuse_jinja(tag.source);
  }
}

std::string JinjaTemplate::text(std::span<const ChatMessage> messages, AnswerHeader answer) const {
  using jinja::Kind;
  jinja::Variables variables = {{"messages", {.kind = Kind::kMessages}},
                                {"tools", {.kind = Kind::kNone}},
                                {"documents", {.kind = Kind::kNone}},
                                {"add_generation_prompt", jinja::truth_value(answer == AnswerHeader::kAppend)}};
  for (const auto& [name, token] : special_tokens_) {
    variables[name] = token ? jinja::text_value(*token) : jinja::Value{};
  }
  return jinja::Evaluation(tags_, messages, std::move(variables)).text();
}

}  // namespace mantissa
