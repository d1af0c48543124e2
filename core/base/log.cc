#include "core/base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace mantissa {
namespace {

// "warning: [rank 1] " in front of warnings and errors, nothing in front of information.
class Prefix final : public spdlog::custom_flag_formatter {
 public:
  explicit Prefix(std::string rank) : rank_(std::move(rank)) {}
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    if (message.level < spdlog::level::warn) return;
    const auto level = spdlog::level::to_string_view(message.level);
    const std::string text = std::string(level.data(), level.size()) + ": " + rank_;
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<Prefix>(rank_); }

 private:
  std::string rank_;
};

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      break;
  }
  return spdlog::level::err;
}

}  // namespace

void start_logging(int rank, int ranks) {
  auto logger = std::make_shared<spdlog::logger>("mantissa", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<Prefix>('*', ranks > 1 ? "[rank " + std::to_string(rank) + "] " : "").set_pattern("%*%v");
  logger->set_formatter(std::move(formatter));
  logger->set_level(rank == 0 ? spdlog::level::info : spdlog::level::warn);
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

bool is_logged(LogLevel level) { return spdlog::should_log(to_spdlog(level)); }

void log_line(LogLevel level, std::string_view line) {
  spdlog::default_logger_raw()->log(to_spdlog(level), spdlog::string_view_t(line.data(), line.size()));
}

void flush_log() { spdlog::default_logger()->flush(); }

}  // namespace mantissa
