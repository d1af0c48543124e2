#include "core/io/config_writer.h"

#include <fmt/core.h>

#include "core/io/config_keys.h"

namespace mantissa {
namespace {

std::string flow_list(const std::vector<std::string>& values) {
  std::string out;
  for (const std::string& value : values) out += (out.empty() ? "" : ", ") + format_text(value);
  return "[" + out + "]";
}

class YamlWriter final : public ConfigVisitor {
 public:
  std::string take() { return std::move(out_); }

  void section(std::string_view key, const std::function<void()>& members) override {
    line(key, "");
    indent_ += 2;
    members();
    indent_ -= 2;
  }
  void scalar(std::string_view key, const ScalarField& field) override { line(key, " " + field.get()); }
  void texts(std::string_view key, const TextListField& field) override { line(key, " " + flow_list(*field.target)); }
  void list(std::string_view key, const ListField& field) override {
    if (field.size() == 0) return line(key, " []");
    line(key, "");
    indent_ += 4;
    for (size_t i = 0; i < field.size(); ++i) {
      dash_ = true;
      field.bind(i, *this);
    }
    indent_ -= 4;
  }

 private:
  void line(std::string_view key, const std::string& value) {
    std::string indent(indent_, ' ');
    if (dash_) indent[indent_ - 2] = '-';
    dash_ = false;
    out_ += fmt::format("{}{}:{}\n", indent, key, value);
  }

  std::string out_;
  size_t indent_ = 0;
  bool dash_ = false;  // the next line is the first of a list's element
};

class Flattener final : public ConfigVisitor {
 public:
  std::map<std::string, std::string> take() { return std::move(values_); }

  void section(std::string_view key, const std::function<void()>& members) override {
    inside(join_config_path(section_, key), members);
  }
  void scalar(std::string_view key, const ScalarField& field) override {
    values_[join_config_path(section_, key)] = field.get();
  }
  void texts(std::string_view key, const TextListField& field) override {
    values_[join_config_path(section_, key)] = flow_list(*field.target);
  }
  void list(std::string_view key, const ListField& field) override {
    for (size_t i = 0; i < field.size(); ++i) {
      inside(fmt::format("{}[{}]", join_config_path(section_, key), i), [&] { field.bind(i, *this); });
    }
  }

 private:
  void inside(std::string section, const std::function<void()>& members) {
    std::swap(section_, section);
    members();
    std::swap(section_, section);
  }

  std::map<std::string, std::string> values_;
  std::string section_;
};

}  // namespace

std::string write_config(const ConfigBinding& bind) {
  YamlWriter writer;
  bind(writer);
  return writer.take();
}

std::map<std::string, std::string> flatten_config(const ConfigBinding& bind) {
  Flattener flattener;
  bind(flattener);
  return flattener.take();
}

}  // namespace mantissa
